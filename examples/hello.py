"""Takes a permit, works for two seconds, gives it back. Usage: hello.py [holder [bulkhead]]"""
import pathlib, sys, time, uuid

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / ".tools/stubs"))
import grpc
from tidegate.v1 import admission_pb2, admission_pb2_grpc

holder = sys.argv[1] if len(sys.argv) > 1 else "hello"
bulkhead = sys.argv[2] if len(sys.argv) > 2 else "payments-api"
tidegate = admission_pb2_grpc.AdmissionServiceStub(grpc.insecure_channel("127.0.0.1:7600"))
ask = admission_pb2.AcquireRequest(bulkhead=bulkhead, holder=holder, request_id=str(uuid.uuid4()))
try:
    granted = tidegate.Acquire(ask, timeout=30)
except grpc.RpcError as refused:
    told = dict(refused.trailing_metadata())
    hint = f"; come back in {told['retry-after-ms']} ms" if "retry-after-ms" in told else ""
    sys.exit(f"{holder}: {refused.code().name}: {refused.details()}{hint}")
print(f"{holder}: runs, after waiting {granted.waited.ToMilliseconds()} ms")
time.sleep(2)  # the work; longer than the ttl it would have to Renew meanwhile
released = tidegate.Release(admission_pb2.ReleaseRequest(lease_id=granted.lease.lease_id))
print(f"{holder}: {admission_pb2.ReleaseState.Name(released.state)}")
