/**
 * The rival for gRPC: a plain server of @grpc/grpc-js whose only method takes a message as it is and answers what it was told.
 */
import { Server, ServerCredentials, type sendUnaryData } from '@grpc/grpc-js';
import { answerParent } from './child.ts';

export interface GrpcEchoAnswer {
  readonly path: string;
  readonly message: Uint8Array;
}

answerParent<GrpcEchoAnswer, { readonly port: number }>(async ({ path, message }) => {
  const answer = Buffer.from(message);
  const asIs = (bytes: Buffer): Buffer => bytes;
  const server = new Server({ 'grpc.enable_channelz': 0 });
  server.register(path, (_call: unknown, done: sendUnaryData<Buffer>) => done(null, answer), asIs, asIs, 'unary');
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, bound) =>
      error === null ? resolve(bound) : reject(error),
    );
  });
  return { port };
});
