"""The refusal table, decoded by a stock gRPC client: every reason that the server has, given by its test in REASONS.

A reason without a row here fails. Started on the server of tests/tests/refusals.rs, which is gone afterwards.
"""

import os
import signal
import time

import grpc

from wire import PATIENCE, WireTest, admin_pb2, main, new_id, pb, seconds

CODE = grpc.StatusCode
BUSY = CODE.RESOURCE_EXHAUSTED


class Table(WireTest):
    def setUp(self):
        super().setUp()
        # Cleanups run last first, and after tearDown.
        self.addCleanup(self.wire.close)

    def tearDown(self):
        pass

    def acquire(self, bulkhead, timeout=None, **fields):
        return self.wire.admission.Acquire(pb.AcquireRequest(bulkhead=bulkhead, **fields), timeout=timeout)

    def start(self, bulkhead, **fields):
        return self.wire.admission.Acquire.future(pb.AcquireRequest(bulkhead=bulkhead, **fields))

    def queued(self, bulkhead, count):
        get, start = admin_pb2.GetBulkheadRequest(name=bulkhead), time.monotonic()
        while self.wire.admin.GetBulkhead(get).bulkhead.status.queued != count:
            self.assertLess(time.monotonic() - start, PATIENCE)

    def held(self, bulkhead):
        lease = self.acquire(bulkhead, max_wait=seconds(0)).lease
        self.addCleanup(lambda: self.wire.release(lease))
        return lease

    def set_mode(self, mode):
        self.wire.admin.SetMode(admin_pb2.SetModeRequest(name="db", mode=mode, detail="moved away"))

    def cooling(self, wait):
        partition = new_id()
        self.wire.admission.ReportRetryAfter(
            pb.ReportRetryAfterRequest(partition=partition, retry_after=seconds(wait))
        )
        return partition

    # Each row: code, whether it has a hint, the wrong field, and the calls that are refused for it.

    def concurrency_capacity_exhausted(self):
        self.held("db")
        return BUSY, True, [], [lambda: self.acquire("db", max_wait=seconds(0))]

    def queue_full(self):
        self.held("full")
        waiter = self.start("full")
        self.addCleanup(waiter.cancel)
        self.queued("full", 1)
        return BUSY, True, [], [lambda: self.acquire("full")]

    def wait_timeout(self):
        self.held("last")
        return BUSY, True, [], [lambda: self.acquire("last", max_wait=seconds(0.03))]

    def displaced(self):
        self.held("displacing")
        last = self.start("displacing", priority=pb.PRIORITY_SHEDDABLE)
        self.queued("displacing", 1)
        urgent = self.start("displacing")
        self.addCleanup(urgent.cancel)
        return BUSY, True, [], [last.result]

    def cooldown_active(self):
        partition = self.cooling(5)
        self.addCleanup(lambda: self.clear(partition))
        return BUSY, True, [], [lambda: self.acquire("db", partition=partition)]

    def cooldown_exceeds_deadline(self):
        partition = self.cooling(600)
        self.addCleanup(lambda: self.clear(partition))
        wait = pb.ON_COOLDOWN_WAIT
        return BUSY, True, [], [
            lambda: self.acquire("db", partition=partition, timeout=5),
            lambda: self.acquire("db", partition=partition, on_cooldown=wait),
        ]

    def clear(self, partition):
        self.wire.admin.ClearCooldown(admin_pb2.ClearCooldownRequest(partition=partition))

    def server_cap_reached(self):
        return BUSY, True, [], [lambda: self.acquire("made/one-more")]

    def draining(self):
        # The last row: the server ends after it.
        self.held("db")
        waiter = self.start("db")
        self.queued("db", 1)
        os.kill(int(os.environ["SERVER"]), signal.SIGTERM)
        return CODE.UNAVAILABLE, True, [], [waiter.result, lambda: self.acquire("db")]

    def bulkhead_closed(self):
        self.set_mode(admin_pb2.MODE_CLOSED)
        self.addCleanup(lambda: self.set_mode(admin_pb2.MODE_ENFORCING))
        return CODE.FAILED_PRECONDITION, False, [], [lambda: self.acquire("db")]

    def bulkhead_not_found(self):
        admin = self.wire.admin
        return CODE.NOT_FOUND, False, [], [
            lambda: self.acquire("nobody"),
            lambda: self.wire.admission.Release(pb.ReleaseRequest(bulkhead="nobody", request_id="r")),
            lambda: admin.GetBulkhead(admin_pb2.GetBulkheadRequest(name="nobody")),
            lambda: admin.SetLimit(admin_pb2.SetLimitRequest(name="nobody", limit=1)),
            lambda: admin.DeleteBulkhead(admin_pb2.DeleteBulkheadRequest(name="nobody")),
            lambda: admin.ListWaiters(admin_pb2.ListWaitersRequest(bulkhead="nobody")),
        ]

    def lease_not_found(self):
        revoke = admin_pb2.RevokeLeaseRequest(bulkhead="db", fencing_token=1)
        return CODE.NOT_FOUND, False, [], [lambda: self.wire.admin.RevokeLease(revoke)]

    def invalid_field(self):
        limit = admin_pb2.SetLimitRequest(name="db", limit=5)
        return CODE.INVALID_ARGUMENT, False, ["limit"], [lambda: self.wire.admin.SetLimit(limit)]

    def permits_exceed_ceiling(self):
        return CODE.INVALID_ARGUMENT, False, ["permits"], [lambda: self.acquire("db", permits=5)]

    def request_id_reused(self):
        request_id = new_id()
        lease = self.acquire("db", request_id=request_id).lease
        self.addCleanup(lambda: self.wire.release(lease))
        again = lambda: self.acquire("db", request_id=request_id, permits=2)
        return CODE.INVALID_ARGUMENT, False, ["request_id"], [again]

    def superseded(self):
        self.held("db")
        request_id = new_id()
        original = self.start("db", request_id=request_id)
        self.queued("db", 1)
        repeat = self.start("db", request_id=request_id)
        self.addCleanup(repeat.cancel)
        return CODE.ABORTED, False, [], [original.result]

    def request_id_spent(self):
        request_id = new_id()
        self.wire.release(self.acquire("db", request_id=request_id).lease)
        return CODE.ABORTED, False, [], [lambda: self.acquire("db", request_id=request_id)]

    def bulkhead_exists(self):
        create = admin_pb2.CreateBulkheadRequest(name="db", settings=admin_pb2.BulkheadSettings(limit=1))
        return CODE.ALREADY_EXISTS, False, [], [lambda: self.wire.admin.CreateBulkhead(create)]

    def bulkhead_in_use(self):
        self.held("db")
        delete = admin_pb2.DeleteBulkheadRequest(name="db")
        return CODE.FAILED_PRECONDITION, False, [], [lambda: self.wire.admin.DeleteBulkhead(delete)]

    def etag_mismatch(self):
        limit = admin_pb2.SetLimitRequest(name="db", limit=1, etag="another")
        mode = admin_pb2.SetModeRequest(name="db", mode=admin_pb2.MODE_PAUSED, etag="another")
        return CODE.ABORTED, False, [], [
            lambda: self.wire.admin.SetLimit(limit),
            lambda: self.wire.admin.SetMode(mode),
        ]


def row(reason):
    def test(self):
        code, has_hint, wrong, calls = getattr(self, reason.lower())()
        for call in calls:
            told, refusal, trailers, fields = self.refusal_of(call)
            self.assertEqual((told, refusal.reason, fields), (code, reason, wrong))
            self.assertEqual(refusal.HasField("retry_hint"), has_hint)
            if has_hint:
                hint = refusal.retry_hint.ToMilliseconds()
                outlasts = reason == "COOLDOWN_EXCEEDS_DEADLINE" and trailers["grpc-retry-pushback-ms"] == "-1"
                self.assertTrue(hint > 0 and (outlasts or trailers["grpc-retry-pushback-ms"] == str(hint)))

    return test


# Tests run by name; the one that ends the server is the last.
for number, reason in enumerate(sorted(os.environ["REASONS"].split(","), key=lambda reason: reason == "DRAINING")):
    setattr(Table, f"test_{number:02}_{reason.lower()}", row(reason))

if __name__ == "__main__":
    main()
