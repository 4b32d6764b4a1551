"""Scores of all examples by Ray Data, a row group at a time, and a subset chosen from them."""

import os
from pathlib import Path

import lipt
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from lipt.arrow import Scorer, select_from
from torchvision.io import encode_png

# On a disk that all nodes have, as the file of weights beside it.
FILE = Path("examples.parquet").absolute()


def scored(groups, scorer):
    """The scores of a row group, on whatever node this is."""
    batches = pq.ParquetFile(FILE).iter_batches(row_groups=groups["group"].to_pylist())
    return pa.Table.from_batches(scorer.scores(batches))


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

    # The cluster that RAY_ADDRESS names, or one of this machine's own.
    ray.init(log_to_driver=False)
    number = pq.ParquetFile(FILE).num_row_groups
    groups = ray.data.from_items([{"group": group} for group in range(number)])
    scores = groups.repartition(number).map_batches(
        scored, batch_size=1, batch_format="pyarrow", fn_kwargs={"scorer": scorer}
    )
    parts = list(scores.iter_batches(batch_size=None, batch_format="pyarrow"))

    subset = select_from(
        pa.concat_tables(parts), "craig", 0.1, run.config.seed, fingerprint=data.fingerprint
    )
    theirs = client.subset(strategy="craig", fraction=0.1)
    print(f"{len(subset)} examples, as the coordinator: {subset.digest == theirs.digest}")


if __name__ == "__main__":
    main()
