"""Client of a coordinator, for a training script or a notebook: plain calls, frozen values."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from lipt.common.access.tokens import TokenSource
from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import OnBytes, Transfers
from lipt.common.config.values import overrides_to_proto
from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    OtherDataError,
    RunFailedError,
    UnreachableError,
)
from lipt.common.network.tls import TlsFiles
from lipt.common.states import RunState
from lipt.trainer.client.access import Access
from lipt.trainer.client.connection import (
    CONTROL_SECONDS,
    CREATE_SECONDS,
    RESTORE_SECONDS,
    Connection,
    Reconnection,
)
from lipt.trainer.client.conversion import view_of
from lipt.trainer.client.sources import (
    Features,
    Source,
    checkpoint_source,
    features_source,
    weights_source,
)
from lipt.trainer.client.streams import (
    OnProgress,
    fetch_diagnosis,
    fetch_subset,
    get_run,
    watch_run,
    watch_service,
    while_going_on,
)
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import (
    DEFAULT_FRACTION,
    DEFAULT_STRATEGY,
    WEIGHTS_KINDS,
    BlobView,
    InfoView,
    ProgressView,
    RunView,
    ServiceView,
    StrategyView,
    WeightsKind,
)
from lipt.trainer.writing.files import place
from lipt.v1 import config_pb2, diagnosis_pb2, info_pb2, run_pb2, subset_pb2

DEFAULT_ADDRESS = "127.0.0.1:50051"

# What a peer may make this side keep; far over any model that is selected with.
_MAX_BYTES = 16 * 1024**3


class Client(AbstractContextManager["Client"]):
    """A connection to a coordinator; use it as a context manager, or `close` it.

    Every call has a deadline and is repeated while the connection is broken,
    so that a restarting coordinator is waited for. Its channel ends before this
    process forks, as for a DataLoader's workers, and the next call opens another.

    Args:
        address: `host:port` of the coordinator.
        tls: certificates, or None for a connection in the clear.
        token: that the coordinator gave out (`lipt token create`), where it asks for one. The user
            of a coordinator on this machine needs none: the local token is found.
        token_file: a file with it; it is read for every call.
        reconnect_seconds: how long a stream that broke, or was put off, is tried again.

    Raises:
        ConfigError: `address` is not host:port, or what is given holds no token.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: TlsFiles | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        reconnect_seconds: float = 300.0,
    ) -> None:
        file = Path(token_file) if token_file is not None else None
        self._connection = Connection(address, tls, TokenSource.from_options(file, token))
        self._reconnect_seconds = reconnect_seconds

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`host:port` of the coordinator."""
        return self._connection.address

    def close(self) -> None:
        """End the connection; what was received stays valid, and another call opens another."""
        self._connection.close()

    @property
    def access(self) -> Access:
        """Tokens, and who the coordinator takes this client for."""
        return Access(self._connection)

    def info(self) -> InfoView:
        """Who answers, with what data, defaults and workers."""
        request = info_pb2.GetInfoRequest()
        return view_of(InfoView, self._connection.unary(lambda of: of.info.GetInfo, request))

    def reach(self, seconds: float, *, on_pause: Callable[[str], object] = lambda _: None) -> None:
        """Wait until the coordinator answers, as while it starts.

        Args:
            seconds: how long at most.
            on_pause: told in words that nobody answers yet, and when it is asked again.

        Raises:
            UnreachableError: nobody has answered.
        """
        reconnection = Reconnection(seconds, expected=True, on_pause=on_pause)
        while True:
            try:
                self._connection.unary(
                    lambda of: of.info.GetInfo,
                    info_pb2.GetInfoRequest(),
                    seconds=min(CONTROL_SECONDS, max(seconds, 1.0)),
                )
            except UnreachableError as error:
                reconnection.pause(error)
            except LiptError:  # it is there: what it refuses is said by the call that is meant
                return
            else:
                return

    def start_run(
        self,
        overrides: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        initial_weights: Source | None = None,
    ) -> RunView:
        """Start a run; it goes on by itself.

        Args:
            overrides: what differs from the coordinator's defaults, nested as in
                `RunConfig`: {"model": "resnet8", "learners": {"num_steps": 5}}.
            name: to find it again; the coordinator makes one up where empty.
            initial_weights: what theta* begins with, as for `upload_weights`. Where its head is
                another, set {"initialization": {"new_head": True}} as well.

        Raises:
            ConfigError: a setting that does not exist, or does not fit the data.
            WeightsError: `initial_weights` are no file of weights, or another model's.
        """
        config: config_pb2.RunConfig = overrides_to_proto(overrides or {})
        if initial_weights is not None:
            given = self.upload_weights(initial_weights)
            config.initialization.weights_sha256 = given.sha256
        request = run_pb2.CreateRunRequest(request_id=uuid.uuid4().hex, name=name, config=config)
        answer = self._connection.unary(
            lambda of: of.runs.CreateRun, request, seconds=CREATE_SECONDS
        )
        return view_of(RunView, answer.run)

    def run(self, run_id: str = "latest") -> RunView:
        """A run as it is now, by its id, its name, or "latest".

        Raises:
            UnknownRunError: there is none of that name.
        """
        return get_run(self._connection, run_id)

    def runs(self) -> list[RunView]:
        """All runs, newest first, without their learners."""
        views: list[RunView] = []
        request = run_pb2.ListRunsRequest()
        while True:
            page = self._connection.unary(lambda of: of.runs.ListRuns, request)
            views.extend(view_of(RunView, run) for run in page.runs)
            if not page.next_page_token:
                return views
            request = run_pb2.ListRunsRequest(page_token=page.next_page_token)

    def ready_run(self, run_id: str = "latest") -> RunView:
        """The run that `subset` and `weights` of this name are of.

        Args:
            run_id: id, name, or "latest": the newest run that is ready, or, where none is, the
                newest.

        Raises:
            UnknownRunError: there is none of that name.
        """
        if run_id == "latest":
            ready = (run.run_id for run in self.runs() if run.state is RunState.READY)
            run_id = next(ready, run_id)
        return self.run(run_id)

    def cancel(self, run_id: str) -> RunView:
        """Stop a run; what it has made so far stays readable.

        Raises:
            UnknownRunError: there is none of that name.
        """
        request = run_pb2.CancelRunRequest(run_id=run_id)
        return view_of(RunView, self._connection.unary(lambda of: of.runs.CancelRun, request).run)

    def watch(self, run_id: str = "latest", after_revision: int = 0) -> Iterator[RunView]:
        """The run whenever it has changed, or what it waits for, until it has ended.

        One that is held has not: it goes on when its operator has given it its data.
        A broken stream is opened again and goes on after the last revision.

        Args:
            run_id: id, name, or "latest" (which stays the run that it was at first).
            after_revision: nothing up to this one is yielded.

        Raises:
            UnknownRunError: there is none of that name.
            UnreachableError: the coordinator stayed away too long.
        """
        reconnection = Reconnection(self._reconnect_seconds)
        yield from watch_run(self._connection, run_id, after_revision, reconnection=reconnection)

    def watch_service(
        self,
        *,
        interval_seconds: float = 1.0,
        num_runs: int = 20,
        on_pause: Callable[[str], object] = lambda _: None,
    ) -> Iterator[ServiceView]:
        """The coordinator as a whole, at once and then whenever something has changed; no end.

        A broken stream is opened again.

        Args:
            interval_seconds: between two views, at least; 0.2 to 60.
            num_runs: so many of the newest runs, at most 200, and all that have not ended.
            on_pause: told in words that the coordinator is away, and when it is asked again.

        Raises:
            UnreachableError: the coordinator stayed away too long.
            InvalidRequestError: `interval_seconds` or `num_runs` is out of its range.
        """
        reconnection = Reconnection(self._reconnect_seconds, on_pause=on_pause)
        yield from watch_service(
            self._connection,
            interval_seconds=interval_seconds,
            num_runs=num_runs,
            reconnection=reconnection,
        )

    def wait(self, run_id: str = "latest") -> RunView:
        """Wait until a run is ready, and return it.

        Raises:
            RunFailedError: it failed, or was cancelled; the message says why.
            OtherDataError: it is held, as its coordinator serves other data than it was made on;
                the message says what its operator has to do. It goes on then: wait again.
        """
        view = self.run(run_id)
        if view.goes_on:
            for changed in while_going_on(self.watch(view.run_id)):
                view = changed
        if view.state is RunState.HELD:
            raise OtherDataError(view.message)
        if view.state is not RunState.READY:
            raise RunFailedError(f"run {view.label} is {view.outcome}.")
        return view

    def subset(
        self,
        run: str = "latest",
        strategy: str = DEFAULT_STRATEGY,
        *,
        fraction: float | None = None,
        budget: int | None = None,
        balanced: bool | None = None,
        options: Mapping[str, object] | None = None,
        preset: str | None = None,
        weights: Source | None = None,
        features: Features | None = None,
        proxy: str | None = None,
        labels: Literal["given", "none"] = "given",
        previous: Subset | str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Subset:
        """The examples that a strategy chooses on a run's model.

        The first request computes it; the coordinator keeps it for the next.

        Args:
            run: id, name, or "latest", the newest that is ready.
            strategy: one of `strategies()`.
            fraction: of the data set, in (0, 1]; a tenth where neither this nor `budget` is given.
            budget: how many examples.
            balanced: equal shares per class; the strategy's default where None.
            options: the strategy's own, by name.
            preset: one of the strategy's, such as "paper": what `options` and `balanced`
                leave open is as it says.
            weights: a safetensors file, or its content, to select on in place of theta_p.
            features: to select on in place of the model's: a tensor or array (N x d), a
                safetensors file, its content, or tensors by name: {"features": N x d}, for
                strategies on pairs with "paired_features" besides. Row i is example i.
            proxy: what judges the examples: "soup" (theta_p or `weights`, with its own head),
                "ridge:" and some of patches, learners, soup, initial (theta*, also while the
                run's learners are being trained), user, backbone, joined by "+",
                or "auto"; the strategy's default where None.
            labels: whether labels may enter the choice; "none" to choose what to label. Such a
                choice is made by features alone: yours where you give some, else of patches of
                the images, or of a proxy of patches, user and backbone.
            previous: the subset that training uses now, or its digest, when the weights
                have changed: `crest` answers with that very one, `kept`, as long as it serves.
            on_progress: called as the computation goes on.

        Raises:
            InvalidRequestError: both of fraction and budget; labels="none" with a strategy that
                looks at labels, or with `weights`.
            UnknownNameError: there is no such strategy, or it has no such preset.
            BudgetError: the data set cannot give that many.
            StrategyOptionError: the strategy has no such option, takes no such value, or cannot
                be balanced, or not be; labels="none" leaves fewer to choose from.
            ProxyError: there is no such proxy, the run has not what it needs, or labels went
                into it, and are not to.
            RunNotReadyError: the run has no weights to select on yet.
            SubsetError: what arrived is not what was announced.
            WeightsError: `weights` is not safetensors, or another model's.
            FeaturesError: `features` is not safetensors, or does not fit the data set.
            QueueFullError: the coordinator had too much to do for longer than
                `reconnect_seconds`.
        """
        if fraction is not None and budget is not None:
            raise InvalidRequestError(
                f"fraction {fraction} and budget {budget} were given: give one of them, a "
                "fraction in (0, 1] of the data set or a number of examples."
            )
        request = subset_pb2.GetSubsetRequest(
            run_id=run,
            strategy=strategy,
            fraction=DEFAULT_FRACTION if fraction is None and budget is None else fraction,
            budget=budget,
            options={name: _option_text(value) for name, value in (options or {}).items()},
            preset=preset,
            proxy=proxy,
            labels=labels,
            previous=previous.digest if isinstance(previous, Subset) else previous,
        )
        if balanced is not None:
            request.balanced = balanced
        if weights is not None:
            request.weights.CopyFrom(blob_to_proto(self._upload(weights_source(weights))))
        if features is not None:
            request.features.CopyFrom(blob_to_proto(self._upload(features_source(features))))
        return fetch_subset(self._connection, request, on_progress, self._reconnection(on_progress))

    def diagnose(
        self,
        run: str | None = None,
        proxy: str | None = None,
        *,
        features: Features | None = None,
        on_progress: OnProgress | None = None,
    ) -> Diagnosis:
        """What is wrong with the coordinator's data: labels, duplicates, outliers, classes.

        It needs neither a run nor a worker. The first request computes it; the coordinator
        keeps it for the next.

        Args:
            run: id, name, or "latest", whose learners help to see; None for the data alone.
            proxy: what looks at the data, as HEAD:FEATURES ("ridge:patches"); None lets the
                coordinator choose.
            features: of your own: a safetensors file, its content, or {"features": N x d}.
                Row i is example i.
            on_progress: called as the computation goes on.

        Raises:
            UnknownRunError: there is no run of that name.
            RunNotReadyError: it has no learners yet.
            UnknownNameError: there is no such proxy.
            FeaturesError: `features` is not safetensors, or does not fit the data set.
            DiagnosisError: what arrived is not what was announced.
        """
        request = diagnosis_pb2.DiagnoseRequest(run_id=run, proxy=proxy)
        if features is not None:
            request.features.CopyFrom(blob_to_proto(self._upload(features_source(features))))
        return fetch_diagnosis(
            self._connection, request, on_progress, self._reconnection(on_progress)
        )

    def strategies(self) -> list[StrategyView]:
        """The selection strategies that the coordinator offers."""
        request = subset_pb2.ListStrategiesRequest()
        answer = self._connection.unary(lambda of: of.subsets.ListStrategies, request)
        return [view_of(StrategyView, item) for item in answer.strategies]

    def upload_weights(self, weights: Source, *, on_bytes: OnBytes | None = None) -> BlobView:
        """Store weights at the coordinator; those that it has are not sent again.

        Args:
            weights: a safetensors file, or its content; or a state dict that `torch.save` wrote
                to a file, of which tensors alone are read.
            on_bytes: called, in another thread, with how many bytes were just sent.

        Returns:
            Its name; {"initialization": {"weights_sha256": name.sha256}} starts a run on it. With
            "new_head": True beside that, the weights may be of a model with other classes.

        Raises:
            WeightsError: it is no such file; nothing was sent.
            BlobTooLargeError: over the coordinator's limit.
        """
        return BlobView(**asdict(self._upload(checkpoint_source(weights), on_bytes)))

    def weights(self, run: str = "latest", kind: str = WeightsKind.PRETRAINED) -> bytes:
        """A run's weights as the content of a safetensors file.

        Args:
            run: id, name, or "latest", the newest that is ready.
            kind: "initial" or "theta*", or "pretrained" or "theta_p".

        Raises:
            RunNotReadyError: it has none yet; the message says how far it is.
            OtherDataError: the coordinator's disk has lost them, and serves other data than they
                could be made again of.
            InvalidRequestError: there is no such kind.
        """
        name = self._find_weights(run, kind)
        return self._connection.transfer(
            lambda blobs: Transfers(blobs).download_bytes(name, max_bytes=_MAX_BYTES)
        )

    def save_weights(
        self,
        path: str | Path,
        run: str = "latest",
        kind: str = WeightsKind.PRETRAINED,
        *,
        on_bytes: OnBytes | None = None,
    ) -> BlobView:
        """Write a run's weights to a safetensors file, whole or not at all.

        Args:
            path: the file.
            run: id, name, or "latest", the newest that is ready.
            kind: "initial" or "theta*", or "pretrained" or "theta_p".
            on_bytes: called with how many bytes just arrived.

        Raises:
            RunNotReadyError: it has none yet; the message says how far it is.
            OtherDataError: the coordinator's disk has lost them, and serves other data than they
                could be made again of.
            InvalidRequestError: there is no such kind.
            OSError: the directory is missing or cannot be written to.
        """
        name, target = self._find_weights(run, kind), Path(path)
        # Beside the file, so that the last step is a rename.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".lipt-") as folder:
            store = BlobStore(Path(folder), max_blob_bytes=_MAX_BYTES)
            part = self._connection.transfer(
                lambda blobs: Transfers(blobs, on_bytes=on_bytes).download(name, store)
            )
            place(part, target)
        return BlobView(**asdict(name))

    def _reconnection(self, on_progress: OnProgress | None) -> Reconnection:
        def on_pause(why: str) -> None:
            if on_progress:
                on_progress(ProgressView(why, 0, 0))

        return Reconnection(self._reconnect_seconds, on_pause=on_pause)

    def _find_weights(self, run: str, kind: str) -> BlobName:
        found = WeightsKind.parse(kind)
        if found is None:
            raise InvalidRequestError(f"there are no {kind!r} weights; choose {WEIGHTS_KINDS}.")
        request = run_pb2.GetWeightsRequest(run_id=run, kind=f"WEIGHTS_KIND_{found.upper()}")
        answer = self._connection.unary(
            lambda of: of.runs.GetWeights, request, seconds=RESTORE_SECONDS
        )
        return blob_from_proto(answer.weights)

    def _upload(self, source: Path | bytes, on_bytes: OnBytes | None = None) -> BlobName:
        # A transfer is patient; where nobody answers at all, this says so at once.
        self.info()
        return self._connection.transfer(
            lambda blobs: Transfers(blobs, on_bytes=on_bytes).upload(source)
        )


def _option_text(value: object) -> str:
    # True travels as the command line would write it.
    return str(value).lower() if isinstance(value, bool) else str(value)
