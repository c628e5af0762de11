/** What clients notice of faults, and how long a server takes to be whole again. About two and a half minutes. */
import type { Benchmark } from './benchmark.ts';
import { poison, restartStorm, supervisorKilled } from './faults-alone.ts';
import { underLoad } from './faults-under-load.ts';

export const FAULTS: Benchmark = {
  name: 'faults',
  about:
    'processes killed and stopped under an open load at half capacity, all at once, by a request, and with their supervisor',
  onlyByName: true,
  run: async (bench) => [
    ...(await underLoad(bench)),
    ...(bench.size.quick ? [] : await restartStorm(bench)),
    ...(await poison(bench)),
    ...(await supervisorKilled(bench)),
  ],
};
