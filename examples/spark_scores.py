"""Scores of all examples by Spark's mapInArrow, and a subset chosen from them."""

import os
import sys

import lipt
import pyarrow as pa
import pyarrow.parquet as pq
from lipt.arrow import Scorer, select_from
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
from torchvision.io import encode_png

SCHEMA = "id long, label long, errors array<float>, features array<float>, el2n float, grand float"

client, data = lipt.Client(os.environ["LIPT_COORDINATOR"]), lipt.open_dataset("mine:data")
run = client.ready_run()
client.save_weights("theta_p.safetensors")
scorer = Scorer.of(run.config, data, "theta_p.safetensors", threads=1, allow_modules=("mine",))

# An id is a row's number in the data, an image the bytes of an image file.
images = [encode_png(row["image"]).numpy().tobytes() for row in data]
labels = data.labels_N.tolist()
table = pa.table({"id": range(len(data)), "label": labels, "image": images})
pq.write_table(table, "examples.parquet")

# Its processes in the environment of this one.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").getOrCreate()
rows = spark.read.parquet("examples.parquet")
# Whole batches in a partition: each example is scored beside the same others as there.
batches = rows.repartitionByRange(2, expr(f"id div {scorer.batch_size}")).sortWithinPartitions("id")
scores = batches.mapInArrow(scorer.scores, SCHEMA).toArrow()

subset = select_from(scores, "craig", 0.1, run.config.seed, fingerprint=data.fingerprint)
theirs = client.subset(strategy="craig", fraction=0.1)
print(f"{len(subset)} examples, as the coordinator: {subset.digest == theirs.digest}")
spark.stop()
