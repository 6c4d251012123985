"""A stock gRPC client with a retry policy obeys what the server tells it."""

import json
import time

import grpc

from wire import ADDRESSES, TTL, WireTest, admission_pb2_grpc, main, pb, seconds

POLICY = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "tidegate.v1.AdmissionService"}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.01s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
                },
            }
        ]
    }
)


class Pushback(WireTest):
    # Each needs a server that has freed nothing yet, so that the hint is the end of the lease.
    def test_a_retry_policy_comes_back_when_the_pushback_says_and_not_before(self):
        start = time.monotonic()
        held = self.wire.acquire(holder="never released").lease
        options = [("grpc.service_config", POLICY), ("grpc.enable_retries", 1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(ADDRESSES[0], options) as channel:
            stub = admission_pb2_grpc.AdmissionServiceStub(channel)
            before = self.wire.status().refused["CONCURRENCY_CAPACITY_EXHAUSTED"]
            granted = stub.Acquire(pb.AcquireRequest(bulkhead="db", max_wait=seconds(0)), timeout=60)
            took, after = time.monotonic() - start, self.wire.status().refused["CONCURRENCY_CAPACITY_EXHAUSTED"]
        # Refused once, with the end of the lease as the hint (again, if the server stood still, which moved that end); its
        # own back-off of 10 ms would have used up all attempts.
        self.assertIn(after - before, (1, 2))
        self.assertGreaterEqual(took, TTL)
        self.assertGreater(granted.lease.fencing_token, held.fencing_token)
        self.wire.release(granted.lease)

    def test_the_pushback_is_not_slept_through_when_it_outlasts_the_deadline(self):
        held = self.wire.acquire(lease_ttl=seconds(60)).lease
        options = [("grpc.service_config", POLICY), ("grpc.enable_retries", 1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(ADDRESSES[0], options) as channel:
            stub, start = admission_pb2_grpc.AdmissionServiceStub(channel), time.monotonic()
            hasty = pb.AcquireRequest(bulkhead="db", max_wait=seconds(0))
            code, refusal, trailers, _ = self.refusal_of(lambda: stub.Acquire(hasty, timeout=20))
        self.assertEqual((code, refusal.reason), (grpc.StatusCode.RESOURCE_EXHAUSTED, "CONCURRENCY_CAPACITY_EXHAUSTED"))
        self.assertEqual(trailers["grpc-retry-pushback-ms"], "-1")
        self.assertLess(time.monotonic() - start, 15)
        self.wire.release(held)


if __name__ == "__main__":
    main()
