"""Scores of all examples by Dask, a row group at a time, and a subset chosen from them."""

import os

import dask
import lipt
import pyarrow as pa
import pyarrow.parquet as pq
from lipt.arrow import Scorer, select_from
from torchvision.io import encode_png

FILE = "examples.parquet"


@dask.delayed
def scored(scorer, group):
    """The scores of one row group, wherever this process is."""
    return list(scorer.scores(pq.ParquetFile(FILE).iter_batches(row_groups=[group])))


def main():
    client, data = lipt.Client(os.environ["LIPT_COORDINATOR"]), lipt.open_dataset("mine:data")
    run = client.ready_run()
    client.save_weights("theta_p.safetensors")
    scorer = Scorer.of(run.config, data, "theta_p.safetensors", threads=1, allow_modules=("mine",))

    # An id is a row's number in the data, an image the bytes of an image file.
    images = [encode_png(row["image"]).numpy().tobytes() for row in data]
    labels = data.labels_N.tolist()
    table = pa.table({"id": range(len(data)), "label": labels, "image": images})
    # Row groups of whole batches: each example is scored beside the same others as there.
    pq.write_table(table, FILE, row_group_size=scorer.batch_size)

    groups = [scored(scorer, group) for group in range(pq.ParquetFile(FILE).num_row_groups)]
    groups = dask.compute(*groups, scheduler="processes")

    scores = pa.Table.from_batches([batch for group in groups for batch in group])
    subset = select_from(scores, "craig", 0.1, run.config.seed, fingerprint=data.fingerprint)
    theirs = client.subset(strategy="craig", fraction=0.1)
    print(f"{len(subset)} examples, as the coordinator: {subset.digest == theirs.digest}")


if __name__ == "__main__":
    main()
