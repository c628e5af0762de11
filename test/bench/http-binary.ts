/** A tiny model over HTTP with binary tensors, where nearly all the work is the server's own: 1, 16 and 64 connections. */
import { compareWithEcho } from './against-echo.ts';
import type { Benchmark } from './benchmark.ts';
import { oneRow, serve } from './served.ts';

export const HTTP_BINARY: Benchmark = {
  name: 'http-binary',
  about: 'tiny MLP, binary tensors, against a bare node:http echo of the same bodies',
  run: async (bench) => {
    const server = await serve(bench.cleanUp, { mlp: {} });
    return compareWithEcho(bench, server, oneRow(server, 'mlp', 64, true), [
      {
        name: 'binary-c1',
        connections: 1,
        targets: { added_median_us: { atMost: 75 }, p99_ratio: { atMost: 3 } },
      },
      { name: 'binary-c16', connections: 16, targets: { throughput_ratio: { atLeast: 0.75 } } },
      { name: 'binary-c64', connections: 64, targets: { throughput_ratio: { atLeast: 0.8 } } },
    ]);
  },
};
