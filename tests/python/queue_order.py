"""Waiting, deadlines and leaving, as a stock gRPC client in Python sees them."""

import subprocess
import sys
import time

import grpc

from wire import ADDRESSES, ATTEMPTS, BUSY, PATIENCE, SLACK, TTL, Wire, WireTest, main, pb, seconds


class Queue(WireTest):
    def test_waiters_are_granted_in_turn(self):
        wires = [Wire(*ADDRESSES) for _ in range(3)]
        held = self.wire.acquire().lease
        waiters = []
        for place in range(1, 31):
            waiters.append(wires[place % 3].start())
            self.wire.until(lambda now, place=place: now.queued == place)
            self.wire.renew(held)
        self.assertEqual(self.wire.release(held), pb.RELEASE_STATE_RELEASED)
        tokens = []
        for waiter in waiters:
            response = waiter.result(timeout=PATIENCE)
            self.assertGreater(response.waited.ToNanoseconds(), 0)
            tokens.append(response.lease.fencing_token)
            self.assertEqual(self.wire.release(response.lease), pb.RELEASE_STATE_RELEASED)
        self.assertEqual(tokens, sorted(tokens))
        self.assertEqual(len(tokens), 30)
        for wire in wires:
            wire.close()

    def test_a_wait_to_the_deadline_is_answered_by_the_server(self):
        # grpc-core rounds the time-out that it sends up, to three digits.
        timeouts = (0.1, 0.2, 0.3337, 0.5, 0.7773, 1.001, 1.0095)
        held = self.wire.acquire(request_id="held", lease_ttl=seconds(60)).lease
        # Rounding can leave as little as 10 ms for the way back, which a busy machine may need for itself.
        for _ in range(ATTEMPTS):
            missed, calls = self.missed([timeout for timeout in timeouts for _ in range(3)])
            if len(missed) <= calls // 10:
                break
        else:
            self.fail(f"not answered by the server: {missed}")
        self.assertEqual(self.wire.status().running, 1)
        self.wire.release(held)

    def missed(self, timeouts):
        """The time-outs of calls that the server did not answer, and how many calls there were."""
        calls = [(timeout, self.wire.start(timeout=timeout)) for timeout in timeouts]
        missed = []
        for timeout, call in calls:
            error = call.exception(timeout=PATIENCE)
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                missed.append(timeout)
                continue
            code, refusal, trailers, _ = self.decoded(error)
            self.assertEqual((code, refusal.reason), (grpc.StatusCode.RESOURCE_EXHAUSTED, "WAIT_TIMEOUT"))
            # What is left of the lease outlasts what is left of the call.
            self.assertEqual(trailers["grpc-retry-pushback-ms"], "-1")
        return missed, len(calls)

    def test_a_wait_to_max_wait_ends_in_its_window(self):
        held = self.wire.acquire(lease_ttl=seconds(60)).lease

        def wait():
            start = time.monotonic()
            _, refusal, trailers, _ = self.refusal_of(lambda: self.wire.acquire(max_wait=seconds(0.3)))
            took = time.monotonic() - start
            self.assertEqual(refusal.reason, "WAIT_TIMEOUT")
            self.assertGreaterEqual(took, 0.3)
            self.assertEqual(trailers["grpc-retry-pushback-ms"], trailers["retry-after-ms"])
            return took

        self.in_time(0.3 + SLACK, wait)
        self.wire.release(held)

    def test_a_cancelled_call_leaves_the_queue(self):
        held = self.wire.acquire(lease_ttl=seconds(60)).lease
        cancelled = [self.wire.start() for _ in range(20)]
        self.wire.until(lambda now: now.queued == 20)
        last = self.wire.start()
        self.wire.until(lambda now: now.queued == 21)
        for call in cancelled:
            self.assertTrue(call.cancel())
        self.wire.until(lambda now: now.queued == 1)
        self.wire.release(held)
        lease = last.result(timeout=PATIENCE).lease
        self.assertEqual(self.wire.release(lease), pb.RELEASE_STATE_RELEASED)
        self.assertEqual(self.wire.status().queued, 0)

    def test_what_a_killed_process_held_is_reclaimed_when_its_lease_ends(self):
        before, start = self.wire.status().expired, time.monotonic()
        holder = subprocess.Popen([sys.executable, __file__, *ADDRESSES, "hold"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(holder.stdout.readline(), "held\n")
        held = time.monotonic()
        next_one = self.wire.start()
        self.wire.until(lambda now: now.running == 1 and now.queued == 1)
        holder.kill()
        holder.wait()
        holder.stdout.close()
        lease = next_one.result(timeout=PATIENCE).lease
        took = time.monotonic() - held
        self.assertGreaterEqual(time.monotonic() - start, TTL)
        # A server that stood still moves the end of the lease, and does not tell it here.
        self.assertLessEqual(took, TTL + SLACK + BUSY)
        self.assertEqual(self.wire.status().expired, before + 1)
        self.wire.release(lease)


def hold():
    """A process that holds the permit until it is killed."""
    wire = Wire(*ADDRESSES)
    wire.acquire()
    print("held", flush=True)
    time.sleep(10 * PATIENCE)


if __name__ == "__main__":
    if sys.argv[3:] == ["hold"]:
        hold()
    else:
        main()
