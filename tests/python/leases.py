"""Grants, renewals, repeats and refusals, as a stock gRPC client in Python sees them."""

import time

import grpc

from wire import ADDRESSES, BUSY, PATIENCE, SLACK, TTL, Wire, WireTest, main, new_id, pb, renewals, seconds


class Leases(WireTest):
    def test_a_free_permit_is_granted_and_given_back_once(self):
        response = self.wire.acquire(holder="python")
        lease = response.lease
        self.assertEqual((lease.bulkhead, lease.permits, response.replayed), ("db", 1, False))
        self.assertEqual(lease.ttl, seconds(TTL))
        self.assertGreater(lease.fencing_token, 0)
        self.assertEqual(self.wire.release(lease), pb.RELEASE_STATE_RELEASED)
        self.assertEqual(self.wire.release(lease), pb.RELEASE_STATE_ALREADY_RELEASED)

    def test_a_renewal_stream_keeps_a_lease_alive(self):
        lease = self.wire.acquire().lease
        ask, end = renewals(self.wire)
        start, seq = time.monotonic(), 0
        while time.monotonic() - start < 1.5 * TTL or seq < 10:
            seq += 1
            renewed = time.monotonic()
            answer = ask(seq, [lease.lease_id, "made up"])
            self.assertEqual(answer.seq, seq)
            states = [(renewal.lease_id, renewal.state) for renewal in answer.renewals]
            expected = [(lease.lease_id, pb.RENEWAL_STATE_RENEWED), ("made up", pb.RENEWAL_STATE_UNKNOWN)]
            self.assertEqual(states, expected)
            time.sleep(TTL / 10)
        self.assertEqual(end(), [])
        self.wire.until(lambda now: now.running == 0, TTL + SLACK + BUSY)
        self.assertGreaterEqual(time.monotonic() - renewed, TTL)
        answer = self.wire.admission.Renew(pb.RenewRequest(seq=9, lease_ids=[lease.lease_id]))
        self.assertEqual((answer.seq, answer.renewals[0].state), (9, pb.RENEWAL_STATE_EXPIRED))

    def test_a_repeat_gets_the_same_lease(self):
        request_id = new_id()
        first = self.wire.acquire(request_id=request_id)
        again = Wire(*ADDRESSES)
        repeat = again.acquire(request_id=request_id)
        self.assertEqual((first.replayed, repeat.replayed), (False, True))
        self.assertEqual(first.lease.fencing_token, repeat.lease.fencing_token)
        self.assertEqual(self.wire.status().running, 1)
        self.assertEqual(again.release(repeat.lease), pb.RELEASE_STATE_RELEASED)
        again.close()
        code, refusal, _, _ = self.refusal_of(lambda: self.wire.acquire(request_id=request_id))
        self.assertEqual((code, refusal.reason), (grpc.StatusCode.ABORTED, "REQUEST_ID_SPENT"))

    def test_a_repeat_takes_over_the_place_in_the_queue(self):
        held, request_id = self.wire.acquire().lease, new_id()
        old = self.wire.start(request_id=request_id)
        self.wire.until(lambda now: now.queued == 1)
        new = self.wire.start(request_id=request_id)
        error = old.exception(timeout=PATIENCE)
        code, refusal, _, _ = self.decoded(error)
        self.assertEqual((code, refusal.reason), (grpc.StatusCode.ABORTED, "SUPERSEDED"))
        self.wire.release(held)
        self.assertEqual(self.wire.release(new.result(timeout=PATIENCE).lease), pb.RELEASE_STATE_RELEASED)

    def test_a_refusal_tells_the_same_in_all_places(self):
        held = self.wire.acquire().lease
        code, refusal, trailers, _ = self.refusal_of(lambda: self.wire.acquire(max_wait=seconds(0)))
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertEqual(refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED")
        self.assertEqual((refusal.bulkhead, refusal.limit, refusal.running), ("db", 1, 1))
        self.assertEqual(trailers["grpc-retry-pushback-ms"], trailers["retry-after-ms"])
        self.wire.release(held)

    def test_a_bad_field_is_named(self):
        for fields, name in (
            ({"lease_ttl": seconds(1)}, "lease_ttl"),
            ({"max_wait": seconds(-1)}, "max_wait"),
            ({"partition": "a\nb"}, "partition"),
            ({"request_id": "x" * 129}, "request_id"),
            ({"priority": 77}, "priority"),
        ):
            code, refusal, _, named = self.refusal_of(lambda fields=fields: self.wire.acquire(**fields))
            self.assertEqual((code, refusal.reason), (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"))
            self.assertEqual(named, [name])
            self.assertFalse(refusal.HasField("retry_hint"))


if __name__ == "__main__":
    main()
