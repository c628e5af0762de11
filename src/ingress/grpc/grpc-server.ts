/**
 * The gRPC side of an ingress process: @grpc/grpc-js over connections that somebody else accepts.
 *
 *     connection ─▶ grpc-js ─▶ interceptor ┬ ModelInfer, ModelStreamInfer ─▶ calls, the inference path
 *                                          ├ reflection
 *                                          └ everything else ─▶ its handlers: documents, health
 *
 * This module and what it imports are loaded when the first connection comes. Bounds: those of HTTP for what is held (BodyBudget), STREAMS_MAX calls per connection.
 */

import type { ServerHttp2Stream } from 'node:http2';
import type { Socket } from 'node:net';
import { Server, ServerCredentials, type ServerInterceptingCall, type ServerInterceptor } from '@grpc/grpc-js';
import type { BatchportError } from '../../config/errors.ts';
import type { IngressSettings } from '../../protocol/control.ts';
import type { BodyBudget } from '../body.ts';
import type { Documents } from '../documents.ts';
import type { ModelTable } from '../model-table.ts';
import { Calls } from './calls.ts';
import { Health } from './health.ts';
import { linger } from './linger.ts';
import { MessageMeter } from './meter.ts';
import { REFLECTION_PATHS, Reflection, ReflectionCall } from './reflection.ts';
import { addInferenceDocuments, asIs, INFERENCE_SERVICE } from './services.ts';
import { statusOf } from './status.ts';
import { StreamCall } from './stream-call.ts';
import type { ServerCall } from './types.ts';
import { UnaryCall } from './unary-call.ts';

const MODEL_INFER = `/${INFERENCE_SERVICE}/ModelInfer`;
const MODEL_STREAM_INFER = `/${INFERENCE_SERVICE}/ModelStreamInfer`;

const STREAMS_MAX = 1024;
/** Bytes that a client may send ahead, per call and per connection: with HTTP/2's default of 64 KiB a large tensor waits for its own acknowledgements. */
const WINDOW_BYTES = 1024 * 1024;
/** A peer that is silent for the keep-alive time is asked, and has this long for its answer. */
const PING_TIMEOUT_MS = 20_000;

export interface GrpcOptions {
  readonly models: ModelTable;
  readonly documents: Documents;
  readonly budget: BodyBudget;
  readonly settings: IngressSettings;
  readonly noteFailure: (error: BatchportError, model: string, id: string | undefined) => void;
}

export class GrpcServer {
  readonly #calls: Calls;
  readonly #health: Health;
  readonly #reflection = new Reflection();
  readonly #injector: ReturnType<Server['createConnectionInjector']>;

  constructor({ models, documents, budget, settings, noteFailure }: GrpcOptions) {
    this.#calls = new Calls(models, budget, noteFailure);
    const idleMs = settings.bodyIdleTimeoutS * 1000;
    const server = new Server({
      // Larger ones are refused by the meter, in words.
      'grpc.max_receive_message_length': settings.maxBodyBytes,
      'grpc.max_concurrent_streams': STREAMS_MAX,
      'grpc.max_connection_idle_ms': settings.keepAliveTimeoutS * 1000,
      'grpc.keepalive_time_ms': settings.keepAliveTimeoutS * 1000,
      'grpc.keepalive_timeout_ms': PING_TIMEOUT_MS,
      'grpc-node.flow_control_window': WINDOW_BYTES,
      // Books about every call, for a service that is not offered here.
      'grpc.enable_channelz': 0,
      interceptors: [this.#intercept],
    });
    // Taken over by the interceptor: these are here for their paths.
    server.register(MODEL_INFER, unreachable, asIs, asIs, 'unary');
    for (const path of [MODEL_STREAM_INFER, ...REFLECTION_PATHS])
      server.register(path, unreachable, asIs, asIs, 'bidi');
    addInferenceDocuments(server, documents);
    this.#health = new Health(server, documents);
    this.#injector = server.createConnectionInjector(ServerCredentials.createInsecure());
    setInterval(() => {
      MessageMeter.sweep();
      this.#calls.checkTaken();
    }, idleMs).unref();
  }

  readonly #intercept: ServerInterceptor = (method, call) => {
    const stream = streamOf(call);
    new MessageMeter(stream, !method.requestStream, this.#calls.budget, (error) => {
      call.sendStatus(statusOf(error));
      linger(stream);
    });
    if (method.path === MODEL_INFER) call.start(new UnaryCall(this.#calls, call, stream));
    else if (method.path === MODEL_STREAM_INFER) call.start(new StreamCall(this.#calls, call, stream));
    else if (REFLECTION_PATHS.includes(method.path)) {
      call.start(new ReflectionCall(this.#calls, call, stream, this.#reflection));
    } else return call as ServerInterceptingCall;
    return TAKEN_OVER;
  };

  /** Serves a connection that has just been accepted; nobody has read from it. */
  serve(socket: Socket): void {
    this.#injector.injectConnection(socket);
  }

  /** Whether the server is ready may have changed. */
  readinessChanged(): void {
    this.#health.changed();
  }

  /** Refuses new calls, lets those under way finish, and closes each connection when it has none left. */
  drain(timeoutMs: number): void {
    this.#calls.drain();
    this.#health.drain();
    this.#injector.drain(timeoutMs);
  }

  get openCalls(): number {
    return this.#calls.count;
  }
}

/** grpc-js does not give the stream of a call; the limits on what is held cannot be kept without it. A test tells when the field has gone. */
function streamOf(call: ServerCall): ServerHttp2Stream {
  const { stream } = call as unknown as { readonly stream?: ServerHttp2Stream };
  if (stream === undefined) throw new Error('grpc-js keeps the stream of a call elsewhere: this is a bug');
  return stream;
}

/** What grpc-js goes on with when a call has been taken over: nothing happens to it. */
const TAKEN_OVER = {
  start() {},
  sendMetadata() {},
  sendMessage() {},
  sendStatus() {},
  startRead() {},
} as unknown as ServerInterceptingCall;

function unreachable(): never {
  throw new Error('a call was not taken over by the interceptor: this is a bug');
}
