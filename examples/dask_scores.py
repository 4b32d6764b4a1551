"""Scores of all examples by Dask, a row group at a time, and a subset chosen from them."""

import os
from functools import reduce

import dask
import lipt
import pyarrow as pa
import pyarrow.parquet as pq
from lipt.arrow import Judge, accumulate, merge, select_from, solve
from torchvision.io import encode_png

FILE, NUM_CLASSES = "examples.parquet", 10


@dask.delayed
def scored(judge, group):
    """The scores of one row group, wherever this process is."""
    return list(judge.scores(pq.ParquetFile(FILE).iter_batches(row_groups=[group])))


@dask.delayed
def summed(batches, counts):
    """What a ridge head on theta_p's features needs to know of them."""
    return reduce(merge, [accumulate(one, NUM_CLASSES, class_counts=counts) for one in batches])


def main():
    client, data = lipt.Client(os.environ["LIPT_COORDINATOR"]), lipt.open_dataset("mine:data")
    run = client.ready_run()
    client.save_weights("theta_p.safetensors")
    judge = Judge.of(run.config, data, "theta_p.safetensors", threads=1, allow_modules=("mine",))

    # An id is a row's number in the data, an image the bytes of an image file.
    images = [encode_png(row["image"]).numpy().tobytes() for row in data]
    labels = data.labels_N.tolist()
    table = pa.table({"id": range(len(data)), "label": labels, "image": images})
    # Row groups of whole batches: each example is judged beside the same others as there.
    pq.write_table(table, FILE, row_group_size=judge.batch_size)

    groups = [scored(judge, group) for group in range(pq.ParquetFile(FILE).num_row_groups)]
    counts = data.labels_N.bincount().tolist()
    sums = [summed(group, counts) for group in groups]
    groups, sums = dask.compute(groups, sums, scheduler="processes")

    scores = pa.Table.from_batches([batch for group in groups for batch in group])
    subset = select_from(scores, "craig", 0.1, run.config.seed, fingerprint=data.fingerprint)
    theirs = client.subset(strategy="craig", fraction=0.1)
    print(f"{len(subset)} examples, as the coordinator: {subset.digest == theirs.digest}")

    head = solve(reduce(merge, sums), penalty=0.1)
    print(f"a ridge head of {len(head.weights_DC)} features")


if __name__ == "__main__":
    main()
