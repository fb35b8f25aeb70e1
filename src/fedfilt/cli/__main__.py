from fedfilt.cli import app

app()
