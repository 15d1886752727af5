"""What `flotilla top` reads beside the keyboard: the stream of overviews, and the list of jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.exit_codes import CommandError
from gateway.cli.gateway_client import Address, GatewayClient
from gateway.cli.job_text import timeline, why_text
from gateway.cli.output import level
from gateway.cli.top.screen import Call

_RETRY_S = 1.0
_JOBS_S = 2.0
_JOBS = 50
_DRAIN_S = 120.0


@dataclass
class Feed:
    """The newest of everything. Threads of its own read it; each field is replaced as a whole."""

    where: Address
    timeout_s: float
    overview: Mapping[str, Any] | None = None
    overview_at: float = 0.0
    jobs: Sequence[Mapping[str, Any]] = ()
    jobs_error: str = ""
    details: RenderableType | None = None
    message: str = ""
    changed: threading.Event = field(default_factory=threading.Event)
    jobs_filter: str | None = None
    """None: the list of jobs is not shown, and not read."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _jobs_due: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to read. The threads end with the process."""
        threading.Thread(target=self._read_overviews, daemon=True).start()
        threading.Thread(target=self._read_jobs, daemon=True).start()

    def stop(self) -> None:
        """Read nothing more."""
        self._stopped.set()
        self._jobs_due.set()

    def show_jobs(self, words: str | None) -> None:
        """List the jobs of a filter from now on; None: none."""
        if words != self.jobs_filter:
            self.jobs_filter, self.jobs, self.jobs_error = words, (), ""
            self._jobs_due.set()

    def describe(self, job_id: str) -> None:
        """Read why a job is as it is, and its timeline."""
        self.details = Text(f"{job_id} ...")
        self._apart(lambda client: self._describe(client, job_id))

    def call(self, call: Call) -> None:
        """Carry out what a key has asked for; the message says how it went."""
        self._apart(lambda client: self._call(client, call))

    def _apart(self, work: Callable[[GatewayClient], None]) -> None:
        def run() -> None:
            with closing(GatewayClient(self.where, self.timeout_s)) as client:
                work(client)
            self.changed.set()

        threading.Thread(target=run, daemon=True).start()

    def _describe(self, client: GatewayClient, job_id: str) -> None:
        try:
            why, events = client.of_job(job_id, "/why"), client.of_job(job_id, "/timeline")
            self.details = Group(Text(job_id, "bold"), why_text(why), Text(), timeline(events))
        except CommandError as error:
            self.details = level("problem", str(error))

    def _call(self, client: GatewayClient, call: Call) -> None:
        try:
            if call.action == "drain":
                client.post(f"/admin/workers/{quote(call.subject)}/drain", wait_s=_DRAIN_S)
            else:
                client.act_on_job(call.action, call.subject)
            self.message = call.done
        except CommandError as error:
            self.message = str(error)
        self._jobs_due.set()

    def _read_overviews(self) -> None:
        client = GatewayClient(self.where, self.timeout_s)
        while not self._stopped.is_set():
            try:
                for event in client.follow("/admin/stream"):
                    if event.name == "overview":
                        self.overview, self.overview_at = event.json(), time.monotonic()
                        self.changed.set()
                    if self._stopped.is_set():
                        return
            except CommandError as error:
                self.message = str(error)
                self.changed.set()
            self._stopped.wait(_RETRY_S)

    def _read_jobs(self) -> None:
        client = GatewayClient(self.where, self.timeout_s)
        while not self._stopped.is_set():
            words = self.jobs_filter
            if words is not None:
                try:
                    # Only operators get the overview, so the jobs of all tenants can be shown.
                    every = words if "tenant:" in words else f"{words} tenant:*".strip()
                    page = client.get("/jobs", filter=every, limit=_JOBS)
                    if words == self.jobs_filter:
                        self.jobs, self.jobs_error = page["data"], ""
                except CommandError as error:
                    self.jobs_error = str(error)
                self.changed.set()
            self._jobs_due.wait(_JOBS_S)
            self._jobs_due.clear()
