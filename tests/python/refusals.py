"""More kinds of refusals, decoded by a stock gRPC client."""

import grpc

from wire import WireTest, admin_pb2, main, new_id, pb, seconds


class Refusals(WireTest):
    def refused(self, code, reason, **fields):
        told, refusal, _, wrong = self.refusal_of(lambda: self.wire.acquire(**fields))
        self.assertEqual((told, refusal.reason), (code, reason))
        return refusal, wrong

    def test_bad_requests_name_their_field(self):
        for field, fields in {
            "permits": {"permits": 2},
            "lease_ttl": {"lease_ttl": seconds(1)},
            "max_wait": {"max_wait": seconds(-1)},
            "priority": {"priority": 9},
            "on_cooldown": {"on_cooldown": 9},
            "partition": {"partition": "\n"},
        }.items():
            reason = "PERMITS_EXCEED_CEILING" if field == "permits" else "INVALID_FIELD"
            self.assertEqual(self.refused(grpc.StatusCode.INVALID_ARGUMENT, reason, **fields)[1], [field])

    def test_a_cooldown_tells_its_remainder(self):
        partition = new_id()
        report = pb.ReportRetryAfterRequest(partition=partition, retry_after=seconds(9), detail="429")
        self.assertTrue(self.wire.admission.ReportRetryAfter(report).extended)
        busy = grpc.StatusCode.RESOURCE_EXHAUSTED
        refusal, _ = self.refused(busy, "COOLDOWN_ACTIVE", partition=partition)
        self.assertEqual(refusal.partition, partition)
        self.assertTrue(5_000 < refusal.retry_hint.ToMilliseconds() <= 10_800)
        self.refused(busy, "COOLDOWN_EXCEEDS_DEADLINE", partition=partition, timeout=3)
        cleared = self.wire.admin.ClearCooldown(admin_pb2.ClearCooldownRequest(partition=partition))
        self.assertTrue(cleared.cleared)

if __name__ == "__main__":
    main()
