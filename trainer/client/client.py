"""Client of a coordinator, for training scripts and notebooks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from lipt.common.access import Role
from lipt.common.access.tls import TlsFiles
from lipt.common.access.tokens import TokenSource
from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.blobs.transfer import Transfers
from lipt.common.config.run_config import preset_of
from lipt.common.config.values import overrides_to_proto
from lipt.common.errors import InvalidRequestError, OtherDataError, RunFailedError
from lipt.common.imports import CAUSAL
from lipt.common.requests import request_to_proto
from lipt.common.rpc.messages import enum_to_proto
from lipt.common.states import RunState
from lipt.core.catalogue import StrategyView
from lipt.data.targets.kinds import TargetKind
from lipt.trainer import views
from lipt.trainer.arguments import checked
from lipt.trainer.client.answers import (
    OnProgress,
    fetch_diagnosis,
    fetch_mixture,
    fetch_subset,
    fetch_weights,
    save_weights,
)
from lipt.trainer.client.connection import (
    CONTROL_SECONDS,
    CREATE_SECONDS,
    Connection,
    Silence,
    Stubs,
)
from lipt.trainer.client.sources import (
    Features,
    SelectionArguments,
    Source,
    features_source,
    request_of,
    weights_source,
)
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView, ViewT, WeightsKind, view_of
from lipt.v1 import (
    access_pb2,
    config_pb2,
    diagnosis_pb2,
    info_pb2,
    mixture_pb2,
    run_pb2,
    subset_pb2,
)

if TYPE_CHECKING:
    from torch import Tensor

    from lipt.trainer.mixture import Mixture

DEFAULT_ADDRESS = "127.0.0.1:50051"

# The coordinator repeats the last message of a watch every few seconds.
_IDLE_SECONDS = 30.0


class Client(AbstractContextManager["Client"]):
    """Connection to a coordinator; use it as a context manager, or `close` it.

    Every call has a deadline, and is repeated while the coordinator restarts. The channel closes
    before this process forks (for DataLoader workers, say); the next call opens another.

    Args:
        address: `host:port` of the coordinator.
        tls: certificates; None for an unencrypted connection.
        token: from `lipt token create`. The user of a coordinator on this machine needs none.
        token_file: a file with the token, read for every call.
        reconnect_seconds: how long to retry a broken or postponed stream.

    Raises:
        ConfigError: `address` is not host:port, or the token is malformed.
    """

    @checked
    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: TlsFiles | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        reconnect_seconds: float = 300.0,
    ) -> None:
        self.address = address
        file = Path(token_file) if token_file is not None else None
        source = TokenSource.from_options(file, token)
        self._connection = Connection(address, tls, source, reconnect_seconds=reconnect_seconds)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        self._connection.close()

    def silence(self) -> Silence | None:
        """Return since when the coordinator sends nothing to a call that follows it, if so.

        Such calls are `watch`, `wait`, `subset` and `diagnose` in another thread.
        """
        return self._connection.contact.silence()

    def info(self) -> views.InfoView:
        """Return the coordinator's data, defaults, versions and workers."""
        return self._ask(views.InfoView, lambda of: of.info.GetInfo, info_pb2.GetInfoRequest())

    def reach(self, seconds: float, *, on_pause: Callable[[str], object] = lambda _: None) -> None:
        """Wait up to `seconds` for any answer; `on_pause` receives a message before each pause."""
        self._connection.reach(seconds, on_pause)

    @checked
    def start_run(
        self,
        overrides: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        initial_weights: Source | None = None,
    ) -> RunView:
        """Start a run.

        Args:
            overrides: changes to the coordinator's defaults, nested as in `RunConfig`: {"model":
                "resnet8", "learners": {"num_steps": 5}}.
            name: the run's name; the coordinator generates one if empty.
            initial_weights: theta*, as in `upload_weights`. If its head has other classes, also set
                {"initialization": {"new_head": True}}.

        Raises:
            ConfigError: a setting does not exist, or does not fit the data.
            WeightsError: `initial_weights` are not weights, or another model's.
        """
        config: config_pb2.RunConfig = overrides_to_proto(overrides or {})
        if initial_weights is not None:
            config.initialization.weights_sha256 = self.upload_weights(initial_weights).sha256
        request = run_pb2.CreateRunRequest(request_id=uuid.uuid4().hex, name=name, config=config)
        return self._run(lambda of: of.runs.CreateRun, request, CREATE_SECONDS)

    @checked
    def run(self, run_id: str = "latest") -> RunView:
        """Return a run's current state, by id, name, or "latest".

        All calls that take a run raise UnknownRunError where there is no such run.
        """
        return self._run(lambda of: of.runs.GetRun, run_pb2.GetRunRequest(run_id=run_id))

    def runs(self) -> list[RunView]:
        """Return all runs, newest first, without their learners."""
        views: list[RunView] = []
        request = run_pb2.ListRunsRequest()
        while True:
            page = self._connection.unary(lambda of: of.runs.ListRuns, request)
            views.extend(view_of(RunView, run) for run in page.runs)
            if not page.next_page_token:
                return views
            request = run_pb2.ListRunsRequest(page_token=page.next_page_token)

    @checked
    def ready_run(self, run_id: str = "latest") -> RunView:
        """Return a run for subsets and weights; "latest" is the newest ready run, if any."""
        if run_id == "latest":
            ready = (run.run_id for run in self.runs() if run.state is RunState.READY)
            run_id = next(ready, run_id)
        return self.run(run_id)

    @checked
    def cancel(self, run_id: str) -> RunView:
        """Stop a run; its results so far stay readable."""
        return self._run(lambda of: of.runs.CancelRun, run_pb2.CancelRunRequest(run_id=run_id))

    @checked
    def watch(self, run_id: str = "latest", after_revision: int = 0) -> Iterator[RunView]:
        """Yield a run after every change until it ends; a held run has not ended.

        A broken stream is reopened for `reconnect_seconds`. "latest" is resolved once, at first.
        """
        revision, waiting = after_revision, ""

        def changes() -> Iterator[RunView]:
            request = run_pb2.WatchRunRequest(run_id=run_id, after_revision=revision)
            for response in self._connection.stream(
                lambda of: of.runs.WatchRun, request, idle_seconds=_IDLE_SECONDS
            ):
                yield view_of(RunView, response.run)
            # The stream of an ended run has no messages after its last revision.
            yield self.run(run_id)

        for view in self._connection.reconnection().resumed(changes):
            run_id = view.run_id
            # Not `>`: revisions start lower if the clock was set back before a restart.
            if view.revision != revision or view.waiting_reason != waiting:
                revision, waiting = view.revision, view.waiting_reason
                yield view
            if view.ended:
                return

    @checked
    def wait(self, run_id: str = "latest") -> RunView:
        """Wait until a run is ready, and return it.

        Raises:
            RunFailedError: the run failed or was cancelled.
            OtherDataError: the run is held because the coordinator serves other data.
        """
        view = self.run(run_id)
        if view.goes_on:
            view = next(changed for changed in self.watch(view.run_id) if not changed.goes_on)
        if view.state is RunState.HELD:
            raise OtherDataError(view.message)
        if view.state is not RunState.READY:
            raise RunFailedError(f"run {view.label} is {view.outcome}.")
        return view

    @checked
    def subset(
        self,
        run: str = "latest",
        strategy: str = views.DEFAULT_STRATEGY,
        *,
        fraction: float | None = None,
        weights: Source | None = None,
        previous: Subset | str | None = None,
        on_progress: OnProgress | None = None,
        **arguments: Unpack[SelectionArguments],
    ) -> Subset:
        """Select examples with a run's model; the coordinator caches the result.

        Arguments of `lipt.select`, and:
            run: id, name, or "latest", the newest ready run or else the newest. A request that
                needs no learner is answered as soon as the run has its theta*.
            strategy: one of `strategies()`.
            weights: as in `upload_weights`, in place of theta_p.
            previous: the subset in use, or its digest; `crest` returns it, marked `kept`, while it
                still suits the changed weights.
            on_progress: called with the computation's progress.

        Raises:
            InvalidRequestError: both fraction and budget, or labels that the strategy lacks.
            UnknownNameError, StrategyOptionError: no such strategy, preset, option or value.
            BudgetError: the data set has fewer examples.
            ProxyError, RunNotReadyError: no such proxy, or the run lacks its inputs or weights.
            WeightsError, FeaturesError: not safetensors, or of another model or data set.
            SubsetError: the answer differs from its description.
            QueueFullError: the coordinator was too busy for `reconnect_seconds`.
        """
        _refuse_probabilities(arguments.get("pred_probs"), "select")
        digest = previous.digest if isinstance(previous, Subset) else previous
        targets = self._stored_targets(arguments.get("target_data"))
        where: Any = {"run": run, "previous": digest or "", "weights": weights, "targets": targets}
        request = request_of(strategy, fraction, arguments, self._store, **where)
        return fetch_subset(self._connection, request_to_proto(request), on_progress)

    @checked
    def diagnose(
        self,
        run: str | None = None,
        proxy: str | None = None,
        *,
        features: Features | None = None,
        pred_probs: object = None,
        on_progress: OnProgress | None = None,
    ) -> Diagnosis:
        """Find wrong labels, duplicates, outliers and weak classes in the coordinator's data.

        Needs neither a run nor a worker; the coordinator caches the result.

        Arguments of `lipt.diagnose`, and:
            run: id, name, or "latest": a run whose learners improve the diagnosis; None uses the
                data alone.
            pred_probs: refused: a coordinator takes none.
            on_progress: called with the computation's progress.

        Raises:
            RunNotReadyError, UnknownNameError: the run has no learners yet, or no such proxy.
            FeaturesError: not safetensors, or of another data set.
            DiagnosisError: the answer differs from its description.
        """
        _refuse_probabilities(pred_probs, "diagnose")
        request = diagnosis_pb2.DiagnoseRequest(
            run_id=run,
            proxy=proxy,
            features=None
            if features is None
            else blob_to_proto(self._store(features_source(features))),
        )
        return fetch_diagnosis(self._connection, request, on_progress)

    @checked
    def settings_for(
        self, purpose: Literal["mixture", "target"], model: str | None = None
    ) -> dict[str, Any]:
        """Return settings for `start_run` that suit the coordinator's data.

        They are of a run by source for `mixture`, or of one for choices by `target_data`. A `model`
        of a folder comes trained, so theta* takes no step; None for the coordinator's.
        """
        info = self.info()
        other = None if info.dataset is None else info.dataset.other_target
        of_texts = other is not None and other.kind == TargetKind.TOKENS
        named = model or info.default_run.model
        return dict(preset_of(purpose, of_texts=of_texts, comes_trained=named.startswith(CAUSAL)))

    @checked
    def mixture(
        self,
        run: str = "latest",
        target_data: Any = None,
        *,
        target: str | None = None,
        allow_modules: Sequence[str] = (),
        on_progress: OnProgress | None = None,
    ) -> Mixture:
        """Find how much of each of a run's sources to train on for a target.

        The run's learners are by source (`settings_for`); one run answers for many targets. The
        coordinator caches the result.

        Args:
            run: id, name, or "latest", the newest ready run.
            target_data: labelled examples of what you care about, as in `lipt.mix`; at most 10,000
                are sent.
            target: the column to predict of a table.
            allow_modules: modules that a name of data may import.
            on_progress: called with the computation's progress.

        Raises:
            InvalidRequestError: the run's learners are not by source.
            RunNotReadyError: the run has no learners yet.
            DataError: the target is of another kind than the run's data.
        """
        (file,) = self._stored_targets({"target": target_data}, target, allow_modules)
        request = mixture_pb2.GetMixtureRequest(run_id=run, target=blob_to_proto(file))
        return fetch_mixture(self._connection, request, on_progress)

    def _stored_targets(
        self, target_data: Any, target: str | None = None, allow_modules: Sequence[str] = ()
    ) -> tuple[BlobName, ...]:
        """Files of examples of what the user cares about, at the coordinator."""
        if target_data is None:
            return ()
        # It imports torch, which a client needs for little else.
        from lipt.trainer.client.targets import form_of, packed_targets  # noqa: PLC0415

        data = self.info().dataset
        if data is None:
            raise InvalidRequestError("the coordinator has told no data. Ask again.")
        files = packed_targets(form_of(data), target_data, target, allow_modules)
        return tuple(map(self._store, files))

    def strategies(self) -> list[StrategyView]:
        """Return the selection strategies that the coordinator offers."""
        request = subset_pb2.ListStrategiesRequest()
        answer = self._connection.unary(lambda of: of.subsets.ListStrategies, request)
        return [view_of(StrategyView, item) for item in answer.strategies]

    def upload_weights(self, weights: Source) -> views.BlobView:
        """Store weights at the coordinator, unless it has them.

        Args:
            weights: a safetensors file, its content, or a state dict file of `torch.save`.

        Raises:
            WeightsError, BlobTooLargeError: not such a file, or over the coordinator's limit.
        """
        return views.BlobView(**asdict(self._store(weights_source(weights))))

    @checked
    def weights(self, run: str = "latest", kind: str = WeightsKind.PRETRAINED) -> bytes:
        """Return a run's weights as the content of a safetensors file.

        Args:
            run: id, name, or "latest", the newest ready run.
            kind: "initial" (theta*) or "pretrained" (theta_p).

        Raises:
            RunNotReadyError: the run has no weights yet.
            OtherDataError: the weights are lost, and the data to recompute them is not served.
            InvalidRequestError: no such kind.
        """
        return fetch_weights(self._connection, run, kind)

    def save_weights(
        self, path: str | Path, run: str = "latest", kind: str = WeightsKind.PRETRAINED
    ) -> views.BlobView:
        """Write a run's weights to a safetensors file atomically, else as `weights`."""
        return views.BlobView(**asdict(save_weights(self._connection, Path(path), run, kind)))

    def save_adapter(self, folder: str | Path, run: str = "latest") -> Path:
        """Write the adapter of a run's theta_p, as peft's `PeftModel.from_pretrained` loads it.

        Errors as `weights`; ConfigError without adapters, or for a model that is in no folder.
        """
        # They import torch, which a client needs for little else.
        from safetensors.torch import load  # noqa: PLC0415

        from lipt.models.adapters import require_adapter, save_adapter  # noqa: PLC0415

        view = self.ready_run(run)
        require_adapter(view.config)
        return save_adapter(Path(folder), load(self.weights(view.run_id)), view.config)

    def who_am_i(self) -> views.CallerView:
        """Return this client's name and roles, as seen by the coordinator."""
        return self._ask(views.CallerView, lambda of: of.access.WhoAmI, access_pb2.WhoAmIRequest())

    def open_page(self) -> views.PageLinkView:
        """Return a link to the coordinator's page; ConfigError if it serves none."""
        return self._ask(
            views.PageLinkView, lambda of: of.access.OpenPage, access_pb2.OpenPageRequest()
        )

    @checked
    def create_token(
        self,
        role: str,
        *,
        name: str = "",
        days: float = 0.0,
        scores: bool = False,
        source: str = "",
    ) -> views.GivenTokenView:
        """Create a token; only this answer contains its secret.

        Args:
            role: "worker", "trainer" or "admin".
            name: shown in the list of tokens.
            days: validity, at most as long as this client's own credential; 0 means as long.
            scores: its workers may score examples; for the role "worker".
            source: its workers may train on data of this source that they hold; likewise.

        Raises:
            PermissionDeniedError: the caller is no admin; the other token calls raise it as well.
        """
        request = access_pb2.CreateTokenRequest(
            role=enum_to_proto(access_pb2.Role.DESCRIPTOR, Role(role)),
            name=name,
            days=days,
            scores=scores,
            source=source,
        )
        return self._ask(views.GivenTokenView, lambda of: of.access.CreateToken, request)

    def tokens(self) -> list[views.TokenView]:
        """Return all tokens, oldest first."""
        request = access_pb2.ListTokensRequest()
        answer = self._connection.unary(lambda of: of.access.ListTokens, request)
        return [view_of(views.TokenView, token) for token in answer.tokens]

    @checked
    def revoke_token(self, token_id: str) -> views.TokenView:
        """Revoke a token immediately."""
        request = access_pb2.RevokeTokenRequest(token_id=token_id)
        answer = self._connection.unary(lambda of: of.access.RevokeToken, request)
        return view_of(views.TokenView, answer.token)

    def _ask(self, view: type[ViewT], method: Callable[[Stubs], Any], request: Any) -> ViewT:
        return view_of(view, self._connection.unary(method, request))

    def _run(
        self, method: Callable[[Stubs], Any], request: Any, seconds: float = CONTROL_SECONDS
    ) -> RunView:
        return view_of(RunView, self._connection.unary(method, request, seconds=seconds).run)

    def _store(self, source: Path | bytes | dict[str, Tensor]) -> BlobName:
        if isinstance(source, dict):
            from lipt.common.tensor_files import pack  # noqa: PLC0415 - torch

            source = pack(source)
        # A transfer retries for long; this call fails at once without a coordinator.
        self.info()
        return self._connection.transfer(lambda blobs: Transfers(blobs).upload(source))


def _refuse_probabilities(given: object, call: str) -> None:
    if given is not None:
        raise InvalidRequestError(
            f"a coordinator takes no pred_probs. Give them to lipt.{call}, in your own process."
        )
