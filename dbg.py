
import asyncio, sys, tempfile, time, os
from pathlib import Path
sys.path.insert(0,"tests/mechanism")
from provider_support import surroundings
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.providers.runsc import RunscExecutionResourceProvider
from agently_kernel.sandbox import watchdog as w
from agently_kernel.sandbox.memory import resident_bytes, proportional_bytes
async def main():
    policy=ExecutionResourcePolicy(limits=ResourceLimits(memory_bytes=512<<20,processes=128))
    with tempfile.TemporaryDirectory() as d:
        async with surroundings(RunscExecutionResourceProvider(), {}, Path(d), policy) as place:
            hs=[]
            r=await place.cell("pass",on_handle=hs.append)
            dog=hs[0].resource.sandbox._watchdog
            print("limits",dog.limits, dog.pid)
            run=asyncio.ensure_future(place.cell("b=[bytearray(b'x')*(100<<20) for _ in range(int(os.environ.get('N','9')))] if False else None\nimport os,time\nfor _ in range(8):\n    if not os.fork():\n        b=bytearray(b'x')*(128<<20); time.sleep(6); os._exit(0)\ntime.sleep(7)"))
            for _ in range(12):
                await asyncio.sleep(0.6)
                t=time.time()
                ps=w.descendants(dog.pid)
                rs={p:resident_bytes(p)>>20 for p in ps}
                pp={p:tuple(x>>20 for x in proportional_bytes(p)) for p in ps}
                def cmd(p):
                    try: return open(f"/proc/{p}/cmdline","rb").read()[:20].decode("ascii","replace")
                    except OSError as e: return str(e)
                def roll(p):
                    try: return len(open(f"/proc/{p}/smaps_rollup").read())
                    except OSError as e: return type(e).__name__
                big=sorted(ps,key=lambda p:-rs[p])[:5]
                print(len(ps),"sum",sum(rs.values()),"prop",sum(a+b for a,b in pp.values()),[(p,cmd(p),rs[p],pp[p],roll(p)) for p in big],"kills",dog._kills,dog.cause,round(time.time()-t,2),flush=True)
                if run.done(): break
            r=await run
            print(r.status,r.message)
asyncio.run(main())
