"""The page of a real coordinator on digits: from its link to the code that it hands out."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
from PIL import Image

from lipt.trainer import Subset
from tests.cluster import Cluster


class Page:
    """A browser that has signed in as the coordinator's own user."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        url = f"{parts.scheme}://{parts.netloc}"
        self.http = httpx.Client(
            base_url=url, headers={"Origin": url}, timeout=120.0, trust_env=False
        )
        assert self.http.get(link).headers["location"] == "/"

    def last_line(self, path: str, **asked: object) -> dict[str, Any]:
        answer = self.http.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = json.loads(answer.text.splitlines()[-1])
        assert "error" not in found, found
        return found


def toml_of(settings: Mapping[str, object], prefix: str = "") -> str:
    """Nested settings as lines of dotted keys."""
    lines = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            lines.append(toml_of(value, f"{prefix}{name}."))
        else:
            lines.append(f"{prefix}{name} = {json.dumps(value)}")
    return "\n".join(lines)


def test_run_is_watched_chosen_from_and_looked_at(
    cluster: Cluster, small_run: dict[str, object]
) -> None:
    cluster.start_coordinator("--data", "digits", "--dashboard-listen", "127.0.0.1:0")
    cluster.start_worker("one")
    link = cluster.lipt("dashboard").stdout.strip()
    page = Page(link)
    with closing(page.http) as http:
        started = http.post("/api/runs", json={"name": "mine", "settings": toml_of(small_run)})
        assert started.status_code == 200, started.text
        with http.stream("POST", "/api/InfoService/WatchService", json={}) as told:
            events = map(json.loads, told.iter_lines())
            runs = (run for event in events for run in event["runs"])
            states = [next(runs)["state"]]
            while states[-1] != "RUN_STATE_READY":
                assert states[-1] != "RUN_STATE_FAILED"
                states.append(next(runs)["state"])
        wanted = {"run_id": "mine", "strategy": "craig", "fraction": 0.05}
        digest = page.last_line("/api/SubsetService/GetSubset", **wanted)["subset"]["digest"]
        subset = http.get(f"/api/runs/mine/subsets/{digest}").json()["subset"]
        assert subset["num_examples"] == 90
        assert subset["weights"]["weighted"]
        # The lines as they stand, but for the last: it wants the data.
        names: dict[str, Any] = {}
        exec("\n".join(subset["code"].splitlines()[:2]), names)  # what a trainer copies
        assert isinstance(names["subset"], Subset)
        assert names["subset"].digest == subset["digest"]
        shown = http.post("/api/pictures", json={"ids": subset["chosen"][:3]}).json()
        for one in shown["pictures"]:
            content = base64.b64decode(one["png"].partition(",")[2])
            assert Image.open(io.BytesIO(content)).size == (8, 8)
