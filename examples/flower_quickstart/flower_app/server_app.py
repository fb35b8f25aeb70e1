"""The app of the server."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedfilt.flower import GFedFilt
from flower_app.task import make_model

app = ServerApp()


@app.main()
def _main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    arrays = ArrayRecord(make_model().state_dict())

    strategy = GFedFilt(fraction_evaluate=context.run_config["fraction-evaluate"])

    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"])
    print("accuracy of the last round:", result.evaluate_metrics_clientapp[context.run_config["num-server-rounds"]])
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
