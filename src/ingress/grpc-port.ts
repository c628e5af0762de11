/**
 * The gRPC port of an ingress process: accepts connections on a socket inherited from the supervisor, and loads the gRPC server when the first one comes. As long as
 * nobody speaks gRPC, the port costs a listening socket.
 *
 * Owner: the ingress process. Connections that come while the server is being loaded wait; node keeps the first bytes of each for it.
 */
import { createServer, type Server, type Socket } from 'node:net';
import type { Logger } from '../config/log.ts';
import type { GrpcOptions, GrpcServer } from './grpc/grpc-server.ts';
import { listenOn } from './listen-on.ts';

export class GrpcPort {
  readonly #options: GrpcOptions;
  readonly #log: Logger;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** Those that were there when the drain began: they are closed when their calls are over. */
  #draining: Set<Socket> | undefined;
  #drainTimeoutMs = 0;
  #loading: Promise<void> | undefined;
  #grpc: GrpcServer | undefined;

  constructor(options: GrpcOptions, log: Logger) {
    this.#options = options;
    this.#log = log;
    this.#server = createServer({ noDelay: true }, (socket) => this.#accept(socket));
  }

  /** Accepts connections on a listening socket inherited from the supervisor. */
  listen(fd: number): Promise<void> {
    return listenOn(this.#server, fd);
  }

  #accept(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('close', () => {
      this.#sockets.delete(socket);
      this.#draining?.delete(socket);
    });
    // All has been written and the end of it told; that the client closes its side too is not waited for.
    socket.on('finish', () => this.#draining?.delete(socket));
    socket.on('error', () => socket.destroy());
    if (this.#grpc !== undefined) this.#grpc.serve(socket);
    else void this.#load().then(() => this.#grpc?.serve(socket));
  }

  #load(): Promise<void> {
    this.#loading ??= import('./grpc/grpc-server.ts').then(
      ({ GrpcServer }) => {
        this.#grpc = new GrpcServer(this.#options);
        if (this.#draining !== undefined) this.#grpc.drain(this.#drainTimeoutMs);
      },
      (error: unknown) => {
        this.#log.fatal({ err: error }, 'the gRPC server cannot be loaded');
        throw error;
      },
    );
    return this.#loading;
  }

  readinessChanged(): void {
    this.#grpc?.readinessChanged();
  }

  /** Finishes what is under way. Connections are still accepted: a client that is told can go elsewhere. */
  drain(timeoutMs: number): void {
    this.#draining = new Set(this.#sockets);
    this.#drainTimeoutMs = timeoutMs;
    this.#grpc?.drain(timeoutMs);
  }

  /** While draining: what is not over. */
  busy(): number {
    return Math.max(this.#draining?.size ?? 0, this.#grpc?.openCalls ?? 0);
  }

  destroyConnections(): void {
    for (const socket of this.#sockets) socket.destroy();
  }
}
