/**
 * Two models on one device, one of them overloaded: how late the other's answers are, against those that it gives alone on half of the device.
 *
 * Both run `conv` with one thread a run. The half is one of two cores (`cpu:0`); the load of the quiet one is half of what that core can do.
 */
import { makeRepository } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import { countOf, openLoad, p99, SLO_MS } from './bench-command.ts';
import type { Benchmark } from './benchmark.ts';

const CLIENTS = 8;
const OVERLOAD = 5;

export const NEIGHBOURS: Benchmark = {
  name: 'neighbours',
  onlyByName: true,
  about: `two models on one device, one overloaded ${OVERLOAD} times: the other's p99 against its p99 alone on half of the device`,
  run: async ({ size, cleanUp }) => {
    const config = { slo_ms: SLO_MS, max_batch_size: 64, runtime: { intra_op_threads: 1 } };
    const start = (device: string) => {
      const models = { quiet: { fixture: 'conv', config }, loud: { fixture: 'conv', config } };
      const { dir } = makeRepository(cleanUp, models);
      return startServer(cleanUp, { repository: dir, args: ['--log-level', 'warn', '--device', device] });
    };
    const half = await start('cpu:0');
    const device = await start('cpu:0-1');
    const aloneMs: number[] = [];
    const besideMs: number[] = [];
    const refused: number[] = [];
    for (let round = 0; round < size.rounds; round++) {
      const { ok_per_s: capacityPerS } = await openLoad(half, 'quiet', size.roundS, '-c', String(CLIENTS));
      const rate = ['--rate', Math.max(1, capacityPerS / 2).toFixed(1), '--seed', String(round + 1)];
      aloneMs.push(p99((await openLoad(half, 'quiet', size.roundS, ...rate)).latency_ms));
      const loud = openLoad(device, 'loud', 2 * size.roundS, '--rate', (OVERLOAD * capacityPerS).toFixed(1));
      const quiet = await openLoad(device, 'quiet', size.roundS, ...rate);
      await loud;
      besideMs.push(p99(quiet.latency_ms));
      refused.push(countOf(quiet, '429', '504') / quiet.requests);
    }
    return [
      {
        name: 'quiet.p99_ratio',
        values: besideMs.map((ms, n) => ms / aloneMs[n]!),
        target: { atMost: 1.5 },
      },
      { name: 'quiet.alone_p99_ms', values: aloneMs },
      { name: 'quiet.p99_ms', values: besideMs },
      { name: 'quiet.refused_ratio', values: refused },
    ];
  },
};
