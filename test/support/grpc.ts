/**
 * A gRPC client for tests: @grpc/grpc-js with messages by @grpc/proto-loader from the .proto files that are shipped, so that the server's own reader and writer of
 * messages are held against another implementation.
 *
 * 64-bit fields are decimal strings on both sides.
 */
import assert from 'node:assert/strict';
import path from 'node:path';
import {
  type CallOptions,
  type ChannelOptions,
  Client,
  type ClientDuplexStream,
  type ClientReadableStream,
  type ClientUnaryCall,
  credentials,
  type GrpcObject,
  loadPackageDefinition,
  Metadata,
  type MethodDefinition,
  type ServiceDefinition,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { type ErrorCode, errorKind } from '../../src/config/errors.ts';
import { decodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import { elementCount } from '../../src/tensor/shape.ts';
import type { CleanUp } from './repository.ts';
import { PROJECT_DIR, type TestServer } from './server.ts';
import { fromWire, type TensorMap, type TestTensor, tensor, wireBytes } from './tensor.ts';

const LIMIT_MS = 30_000;

const loaded = loadPackageDefinition(
  loadSync(['inference.proto', 'health.proto'], {
    includeDirs: [path.join(PROJECT_DIR, 'config/proto')],
    keepCase: true,
    longs: String,
    enums: String,
    bytes: Buffer,
    defaults: true,
  }),
) as GrpcObject;

function serviceOf(...names: string[]): ServiceDefinition {
  let found: unknown = loaded;
  for (const name of names) found = (found as GrpcObject)[name];
  return (found as { service: ServiceDefinition }).service;
}

export const INFERENCE = serviceOf('inference', 'GRPCInferenceService');
export const HEALTH = serviceOf('grpc', 'health', 'v1', 'Health');

/** A message as the loader takes and gives it. */
// biome-ignore lint/suspicious/noExplicitAny: the tests know what is in them.
export type Message = Record<string, any>;

/** Clients of a server; they are closed when the test or the file ends. */
export class GrpcClients {
  private readonly server: TestServer;
  private readonly clients: GrpcClient[] = [];

  constructor(cleanUp: CleanUp, server: TestServer) {
    this.server = server;
    cleanUp.after(() => {
      for (const { client } of this.clients) client.close();
    });
  }

  /** A client with a connection of its own. The server has to be ready. */
  open(options: ChannelOptions = {}): GrpcClient {
    const client = new GrpcClient(this.server.address('grpc'), options);
    this.clients.push(client);
    return client;
  }
}

export interface StartedCall {
  readonly call: ClientUnaryCall;
  readonly answer: Promise<Message>;
}

export class GrpcClient {
  readonly client: Client;

  constructor(target: string, options: ChannelOptions) {
    this.client = new Client(target, credentials.createInsecure(), {
      // A connection of its own for each client.
      'grpc.use_local_subchannel_pool': 1,
      'grpc.max_receive_message_length': -1,
      'grpc.enable_retries': 0,
      ...options,
    });
  }

  /** One call of a method of the inference service. @throws ServiceError */
  call(method: string, message: Message = {}, options: CallOptions = {}): Promise<Message> {
    return this.unary(methodOf(INFERENCE, method), message, options);
  }

  health(service = ''): Promise<Message> {
    return this.unary(methodOf(HEALTH, 'Check'), { service });
  }

  watch(service = ''): ClientReadableStream<Message> {
    const { path: name, requestSerialize, responseDeserialize } = methodOf(HEALTH, 'Watch');
    return this.client.makeServerStreamRequest(name, requestSerialize, responseDeserialize, { service }, limited());
  }

  unary(method: MethodDefinition<Message, Message>, message: Message, options: CallOptions = {}): Promise<Message> {
    return this.begin(method, message, options).answer;
  }

  /** A call that can be cancelled. */
  start(method: string, message: Message): StartedCall {
    return this.begin(methodOf(INFERENCE, method), message, {});
  }

  private begin(method: MethodDefinition<Message, Message>, message: Message, options: CallOptions): StartedCall {
    const { path: name, requestSerialize, responseDeserialize } = method;
    let call: ClientUnaryCall | undefined;
    const answer = new Promise<Message>((resolve, reject) => {
      const done = (error: ServiceError | null, value?: Message) => (error === null ? resolve(value!) : reject(error));
      const metadata = new Metadata();
      call = this.client.makeUnaryRequest(
        name,
        requestSerialize,
        responseDeserialize,
        message,
        metadata,
        limited(options),
        done,
      );
    });
    return { call: call!, answer };
  }

  /** A call of ModelInfer with these bytes for a message. */
  raw(bytes: Buffer, name = INFERENCE.ModelInfer!.path): Promise<Buffer> {
    const asIs = (buffer: Buffer): Buffer => buffer;
    const method = { path: name, requestSerialize: asIs, responseDeserialize: asIs };
    return this.unary(method as unknown as MethodDefinition<Message, Message>, bytes) as unknown as Promise<Buffer>;
  }

  stream(): ClientDuplexStream<Message, Message> {
    const { path: name, requestSerialize, responseDeserialize } = methodOf(INFERENCE, 'ModelStreamInfer');
    return this.client.makeBidiStreamRequest(name, requestSerialize, responseDeserialize, limited());
  }

  /** A stream of this method with bytes for messages. */
  rawStream(name: string): ClientDuplexStream<Buffer, Buffer> {
    const asIs = (buffer: Buffer): Buffer => buffer;
    return this.client.makeBidiStreamRequest(name, asIs, asIs, limited());
  }

  infer(model: string, inputs: TensorMap, fields: Message = {}): Promise<Message> {
    return this.call('ModelInfer', rawRequest(model, inputs, fields));
  }
}

/** Options of a call that ends at last, whatever the server does. */
function limited(options: CallOptions = {}): CallOptions {
  return { deadline: Date.now() + LIMIT_MS, ...options };
}

function methodOf(service: ServiceDefinition, method: string): MethodDefinition<Message, Message> {
  const definition = service[method];
  assert(definition !== undefined, `no method ${method} in the .proto files`);
  return definition as MethodDefinition<Message, Message>;
}

/** ModelInferRequest with the tensors in raw_input_contents. */
export function rawRequest(model: string, inputs: TensorMap, fields: Message = {}): Message {
  return {
    model_name: model,
    inputs: [...inputs].map(([name, { datatype, shape }]) => ({ name, datatype, shape })),
    raw_input_contents: [...inputs.values()].map(wireBytes),
    ...fields,
  };
}

const CONTENTS: Readonly<Record<string, string>> = {
  BOOL: 'bool_contents',
  INT8: 'int_contents',
  INT16: 'int_contents',
  INT32: 'int_contents',
  INT64: 'int64_contents',
  UINT8: 'uint_contents',
  UINT16: 'uint_contents',
  UINT32: 'uint_contents',
  UINT64: 'uint64_contents',
  FP32: 'fp32_contents',
  FP64: 'fp64_contents',
  BYTES: 'bytes_contents',
};

/** ModelInferRequest with the tensors in contents. */
export function typedRequest(model: string, inputs: TensorMap, fields: Message = {}): Message {
  return {
    model_name: model,
    inputs: [...inputs].map(([name, value]) => ({
      name,
      datatype: value.datatype,
      shape: value.shape,
      contents: { [CONTENTS[value.datatype]!]: elementsOf(value) },
    })),
    ...fields,
  };
}

function elementsOf({ datatype, data }: TestTensor): unknown[] {
  if (datatype === 'BOOL') return Array.from(data as Uint8Array, Boolean);
  return Array.from(data as ArrayLike<unknown>, (element) => (typeof element === 'bigint' ? String(element) : element));
}

/** Tensors of a ModelInferResponse. */
export function tensorsOf({ outputs, raw_output_contents: raw }: Message): Map<string, TestTensor> {
  assert.equal(raw.length, outputs.length, 'tensors in raw_output_contents');
  return new Map(
    outputs.map(({ name, datatype, shape, contents }: Message, n: number) => {
      assert.equal(contents, null, 'contents of an output');
      const dims = shape.map(Number);
      if (datatype !== 'BYTES') return [name, fromWire(datatype, dims, raw[n])];
      const elements = decodeBytesTensor(raw[n], elementCount(dims)!);
      assert(elements !== undefined, `${name} is not that many elements`);
      return [name, tensor('BYTES', dims, elements)];
    }),
  );
}

/** The call is refused with that code, and its status is the one of the table. */
export async function assertCallRefused(call: Promise<unknown>, code: ErrorCode, message: RegExp): Promise<void> {
  const error = await call.then(
    () => assert.fail(`answered, though ${code} was expected`),
    (reason: unknown) => reason as ServiceError,
  );
  assert.match(error.details, message);
  assert.equal(error.metadata.get('batchport-code')[0], code);
  const { grpc, retryAfterS } = errorKind(code);
  assert.equal(status[error.code], grpc);
  const pushback = error.metadata.get('grpc-retry-pushback-ms')[0];
  assert.equal(pushback, retryAfterS === undefined ? undefined : String(retryAfterS * 1000), 'pushback');
}
