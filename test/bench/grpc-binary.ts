/** A tiny model over gRPC, where nearly all the work is that of the transport, against a bare server of @grpc/grpc-js that answers the same messages. */
import { GrpcClients, INFERENCE, rawRequest } from '../support/grpc.ts';
import { tensor } from '../support/tensor.ts';
import { compareSides } from './against-echo.ts';
import type { Benchmark } from './benchmark.ts';
import { BenchChild } from './child.ts';
import type { GrpcEchoAnswer } from './grpc-echo-server.ts';
import { BuiltIn } from './load.ts';
import { processesOf, serve } from './served.ts';

const COLUMNS = 64;

export const GRPC_BINARY: Benchmark = {
  name: 'grpc-binary',
  about: 'tiny MLP over gRPC, raw contents, against a bare echo of @grpc/grpc-js',
  run: async (bench) => {
    const server = await serve(bench.cleanUp, { mlp: {} }, { grpc: true });
    const { path, requestSerialize } = INFERENCE.ModelInfer!;
    const data = Float32Array.from({ length: COLUMNS }, (_, n) => Math.sin(n + 1));
    const message = requestSerialize(rawRequest('mlp', new Map([['x', tensor('FP32', [1, COLUMNS], data)]])));
    const answer = await new GrpcClients(bench.cleanUp, server).open().raw(message);
    const echo = BenchChild.start<GrpcEchoAnswer, { port: number }>(bench.cleanUp, 'grpc-echo-server');
    const { port } = await echo.ask({ path, message: answer });
    const load = new BuiltIn(bench.cleanUp, 'grpc-load-worker');
    const request = (target: string) => ({ url: `http://${target}${path}`, headers: {}, body: framed(message) });
    return compareSides(
      bench,
      { request: request(server.address('grpc')), pids: await processesOf(server), load },
      { request: request(`127.0.0.1:${port}`), pids: new Map([['echo', echo.pid]]), load },
      [
        { name: 'grpc-c1', connections: 1 },
        { name: 'grpc-c16', connections: 16, targets: { throughput_ratio: { atLeast: 0.9 } } },
      ],
    );
  },
};

/** A message as it goes over the wire. */
function framed(message: Buffer): Buffer {
  const frame = Buffer.alloc(5 + message.length);
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, 5);
  return frame;
}
