/** The same tiny model with its tensors in JSON: what parsing and printing numbers costs. */
import { compareWithEcho } from './against-echo.ts';
import type { Benchmark } from './benchmark.ts';
import { oneRow, serve } from './served.ts';

export const HTTP_JSON: Benchmark = {
  name: 'http-json',
  about: 'tiny MLP, tensors in JSON, 16 connections, against a bare node:http echo of the same bodies',
  run: async (bench) => {
    const server = await serve(bench.cleanUp, { mlp: {} });
    return compareWithEcho(bench, server, oneRow(server, 'mlp', 64, false), [{ name: 'json-c16', connections: 16 }]);
  },
};
