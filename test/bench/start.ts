/** Time from the spawn of the server to its ready line, beside one process that loads the same models and nothing else. */
import { makeRepository } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import { type Benchmark, CleanUps, interleave } from './benchmark.ts';
import { BenchChild } from './child.ts';
import { DEMO_DIR, demoModels } from './demo.ts';

/** Milliseconds that `start` takes; what it started is stopped afterwards. */
async function timed(start: (cleanUp: CleanUps) => Promise<unknown>): Promise<number> {
  const cleanUp = new CleanUps();
  try {
    const started = performance.now();
    await start(cleanUp);
    return performance.now() - started;
  } finally {
    await cleanUp.run();
  }
}

export const START: Benchmark = {
  name: 'start',
  about: 'from spawn to the ready line, beside one process that loads the same models',
  run: async ({ size, cleanUp }) => {
    const tiny = makeRepository(cleanUp, ['mlp']);
    const repositories = [
      { name: 'start-mlp', dir: tiny.dir, models: [tiny.path('mlp', '1', 'model.onnx')] },
      { name: 'start-demo', dir: DEMO_DIR, models: demoModels() },
    ];
    const measurements = [];
    for (const { name, dir, models } of repositories) {
      const { ones: ready, others: bare } = await interleave(
        size.rounds,
        () => timed((own) => startServer(own, { repository: dir, args: ['--log-level', 'warn'] })),
        () => timed((own) => BenchChild.start<readonly string[], number>(own, 'bare-sessions').ask(models)),
      );
      measurements.push({ name: `${name}.ready_ms`, values: ready }, { name: `${name}.bare_ms`, values: bare });
    }
    return measurements;
  },
};
