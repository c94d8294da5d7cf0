import asyncio, sys, json, tempfile, time, re
from pathlib import Path
sys.path.insert(0,'/tmp/w/structure/tests/mechanism')
from images import dockerd
from provider_support import surroundings
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.providers.docker import DockerExecutionResourceProvider
from agently_kernel.providers.gvisor import GvisorExecutionResourceProvider
from agently_kernel.providers.runsc import RunscExecutionResourceProvider
HS={'mem_mb':512,'nproc':128,'cpus':1}
names=sys.argv[2].split(',')
async def main(engine):
    for kind in sys.argv[1].split(','):
        P={'gvisor':GvisorExecutionResourceProvider,'docker':DockerExecutionResourceProvider,'runsc':RunscExecutionResourceProvider}[kind]
        for n in names:
            f=next(Path('/tmp/w/structure/esc').glob(n+'*'))
            code='HS='+repr(HS)+'\n'+f.read_text()
            policy=ExecutionResourcePolicy(limits=ResourceLimits(memory_bytes=512<<20,processes=128,cpus=1.0))
            with tempfile.TemporaryDirectory() as d:
                async with surroundings(P(), engine.config() if engine and kind!='runsc' else {}, Path(d), policy) as place:
                    t=time.time()
                    try:
                        r=await asyncio.wait_for(place.cell(code, timeout=90),100) if 'timeout' in place.cell.__code__.co_varnames else await asyncio.wait_for(place.cell(code),100)
                        print(kind,n,round(time.time()-t,1),r.status, 'OUT',repr(r.stdout.text[-200:]),'ERR',repr(r.stderr.text[-300:]),'MSG',r.message, r.error and r.error.get('evalue'), 'LIM', [ (l.name,l.limit,l.mechanism,l.observed) for l in r.facts.limits[:3]], flush=True)
                    except Exception as e:
                        print(kind,n,'EXC',type(e),e,flush=True)
if 'docker' in sys.argv[1] or 'gvisor' in sys.argv[1]:
    with dockerd() as e: asyncio.run(main(e))
else: asyncio.run(main(None))
