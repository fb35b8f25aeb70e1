from fedfilt._start import leave_current_folder

leave_current_folder()

from fedfilt.cli import app  # noqa: E402


def main() -> None:
    """The command `fedfilt`."""
    app()


if __name__ == "__main__":
    main()
