"""What the scripts here share: the server under test, its stubs, and refusals decoded the way other languages do it.

Each script is started by tests/tests/python.rs as `SCRIPT ADMISSION_ADDRESS ADMIN_ADDRESS [TEST ...]`, against a server
with one bulkhead `db`: limit 1, max_wait 1 min, lease_ttl 2 s.
"""

import pathlib
import sys
import threading
import time
import unittest
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".tools" / "stubs"))

import grpc  # noqa: E402
from google.protobuf import duration_pb2  # noqa: E402
from google.rpc import error_details_pb2  # noqa: E402
from grpc_status import rpc_status  # noqa: E402
from tidegate.v1 import admin_pb2, admin_pb2_grpc  # noqa: E402
from tidegate.v1 import admission_pb2 as pb  # noqa: E402
from tidegate.v1 import admission_pb2_grpc, refusal_pb2  # noqa: E402

TTL = 2.0
SLACK = 0.25
PATIENCE = 40.0
# What a busy machine may add where no more is asserted than that something comes.
BUSY = 10.0
# How often what came too late is tried: a machine that stalls makes one attempt late, and not each of five.
ATTEMPTS = 5


class Wire:
    """Both sides of the server, on a connection of its own."""

    def __init__(self, admission, admin):
        # Channels to one address share a connection unless told otherwise.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channels = [grpc.insecure_channel(address, options) for address in (admission, admin)]
        self.admission = admission_pb2_grpc.AdmissionServiceStub(self.channels[0])
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channels[1])

    def close(self):
        for channel in self.channels:
            channel.close()

    def status(self):
        return self.admin.GetBulkhead(admin_pb2.GetBulkheadRequest(name="db")).bulkhead.status

    def until(self, holds, bound=PATIENCE):
        """Looks at the bulkhead until something holds for it."""
        start = time.monotonic()
        while not holds(status := self.status()):
            if time.monotonic() - start > bound:
                raise AssertionError(f"still stands like this after {bound} s: {status}")
            time.sleep(0.002)
        return status

    def acquire(self, timeout=None, **fields):
        return self.admission.Acquire(pb.AcquireRequest(bulkhead="db", **fields), timeout=timeout)

    def start(self, timeout=None, **fields):
        return self.admission.Acquire.future(pb.AcquireRequest(bulkhead="db", **fields), timeout=timeout)

    def renew(self, lease):
        """For a lease that has to last as long as the test, however slow the machine is."""
        self.admission.Renew(pb.RenewRequest(lease_ids=[lease.lease_id]))

    def release(self, lease):
        return self.admission.Release(pb.ReleaseRequest(lease_id=lease.lease_id)).state


class WireTest(unittest.TestCase):
    """A test that leaves the bulkhead as it found it, and checks that it did."""

    def setUp(self):
        self.wire = Wire(*ADDRESSES)

    def tearDown(self):
        self.wire.until(lambda now: now.running == 0 and now.queued == 0, TTL + SLACK + BUSY)
        lease = self.wire.acquire(max_wait=seconds(0)).lease
        self.assertEqual(self.wire.release(lease), pb.RELEASE_STATE_RELEASED)
        self.wire.close()

    def in_time(self, most, attempt):
        """Tries until an attempt, which answers how long something took, took no longer than `most`."""
        late = []
        while len(late) < ATTEMPTS:
            took = attempt()
            if took <= most:
                return
            late.append(took)
        self.fail(f"too late each time, at most {most}: {late}")

    def refusal_of(self, call):
        """The refusal of a call that must be refused, its parts compared with each other."""
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        return self.decoded(caught.exception)

    def decoded(self, error):
        status = rpc_status.from_call(error)
        self.assertIsNotNone(status, f"not an answer of ours: {error}")
        details = {detail.TypeName(): detail for detail in status.details}
        info, refusal = error_details_pb2.ErrorInfo(), refusal_pb2.Refusal()
        self.assertTrue(details["google.rpc.ErrorInfo"].Unpack(info))
        self.assertTrue(details["tidegate.v1.Refusal"].Unpack(refusal))
        self.assertEqual((info.domain, info.reason), ("tidegate", refusal.reason))
        for name in ("bulkhead", "partition", "limit", "running", "unheard", "queued"):
            if name in info.metadata:
                self.assertEqual(info.metadata[name], str(getattr(refusal, name)), name)
        trailers = dict(error.trailing_metadata())
        if refusal.HasField("retry_hint"):
            retry = error_details_pb2.RetryInfo()
            self.assertTrue(details["google.rpc.RetryInfo"].Unpack(retry))
            self.assertEqual(retry.retry_delay, refusal.retry_hint)
            hint = str(refusal.retry_hint.ToMilliseconds())
            self.assertEqual(trailers["retry-after-ms"], hint)
            self.assertIn(trailers["grpc-retry-pushback-ms"], (hint, "-1"))
        else:
            self.assertNotIn("google.rpc.RetryInfo", details)
            self.assertNotIn("retry-after-ms", trailers)
            self.assertNotIn("grpc-retry-pushback-ms", trailers)
        refusal_code, fields = error.code(), []
        if "google.rpc.BadRequest" in details:
            bad = error_details_pb2.BadRequest()
            self.assertTrue(details["google.rpc.BadRequest"].Unpack(bad))
            fields = [violation.field for violation in bad.field_violations]
        return refusal_code, refusal, trailers, fields


def seconds(number):
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(number * 1e9))
    return duration


def new_id():
    return uuid.uuid4().hex


def renewals(wire):
    """A renewal stream that is asked and answered step by step: `ask(seq, ids)` gives the answer."""
    ready, requests = threading.Semaphore(0), []

    def sent():
        while True:
            ready.acquire()
            if (request := requests.pop(0)) is None:
                return
            yield request

    answers = wire.admission.RenewLeases(sent())

    def ask(seq, lease_ids):
        requests.append(pb.RenewLeasesRequest(seq=seq, lease_ids=lease_ids))
        ready.release()
        return next(answers)

    def end():
        requests.append(None)
        ready.release()
        return list(answers)

    return ask, end


ADDRESSES = tuple(sys.argv[1:3])


def main():
    unittest.main(module="__main__", argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
