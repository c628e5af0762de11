/**
 * An ingress process: HTTP in front, the queue behind. It holds no model and no weights, so its death costs its own connections only.
 *
 * It obeys the supervisor over the IPC channel and is woken by its doorbell when results are there. Every queue is looked at again at intervals, so
 * that a lost ring costs milliseconds. If the supervisor dies, the kernel ends this process.
 */
import { constants as fs, openSync } from 'node:fs';
import { Socket } from 'node:net';
import { createLogger, flushLogs, type Logger, setLogging } from '../config/log.ts';
import type { LogLevel } from '../config/settings.ts';
import type { FromIngress, IngressSettings, ToIngress } from '../protocol/control.ts';
import type { SendMessage } from '../system/child.ts';
import { availableCpu } from '../system/cpu.ts';
import { openProcessFd } from '../system/memory.ts';
import { BodyBudget } from './body.ts';
import { Documents } from './documents.ts';
import type { GrpcOptions } from './grpc/grpc-server.ts';
import { GrpcPort } from './grpc-port.ts';
import { HttpServer } from './http-server.ts';
import { JsonThreads } from './json-threads.ts';
import { ModelTable } from './model-table.ts';
import { RemoteControl } from './remote-control.ts';
import { SharedRegions } from './shared-regions.ts';

/** How often queues are looked at without a ring. */
const POLL_MS = 50;
/** While draining: how often it is checked whether all have been answered. */
const DRAIN_CHECK_MS = 10;
/** A second thread for JSON only where there are cores for it, beside the event loop's, the models' and those of other ingress processes. */
const TWO_JSON_THREADS_FROM_CORES = 4;

type Init = Extract<ToIngress, { type: 'init' }>;

export class IngressProcess {
  readonly #log: Logger;
  readonly #send: SendMessage<FromIngress>;
  readonly #models: ModelTable;
  readonly #control: RemoteControl;
  readonly #regions: SharedRegions;
  readonly #documents: Documents;
  readonly #http: HttpServer;
  /** Undefined when gRPC is off. */
  readonly #grpc: GrpcPort | undefined;

  /** `workers` is the directory of the compiled entries. */
  constructor(init: Init, workers: URL, send: SendMessage<FromIngress>) {
    const { settings } = init;
    this.#send = send;
    this.#log = createLogger('ingress', settings.logLevel as LogLevel, { slot: init.slot });
    const bellFds = init.bellFds.map((fd) => openProcessFd(init.supervisorPid, fd));
    const budget = new BodyBudget(settings.maxInflightBytes, settings.maxBodyBytes);
    const jsonThreads = new JsonThreads({
      entry: new URL('json.js', workers),
      threads: availableCpu().threads < TWO_JSON_THREADS_FROM_CORES ? 1 : 2,
      budget,
      log: this.#log,
    });
    this.#regions = new SharedRegions(settings.systemSharedMemory, init.supervisorPid);
    const end = {
      slot: init.slot,
      bellFds,
      maxTensorBytes: 8 * settings.maxBodyBytes,
      transformEntry: new URL('transform.js', workers),
      budget,
      log: this.#log,
      sharedMemory: this.#regions,
    };
    this.#models = new ModelTable(end, jsonThreads);
    this.#control = new RemoteControl(settings.modelControlMode, (message) => send(message));
    this.#documents = new Documents(this.#models, this.#control, this.#regions, settings.logLevel as LogLevel);
    this.#http = new HttpServer(this.#models, this.#documents, budget, settings, this.#log);
    if (init.grpcListenFd !== undefined) this.#grpc = this.#makeGrpcPort(settings, budget);
    this.#listenToBell(`/proc/${init.supervisorPid}/fd/${init.bellFd}`);
    setInterval(() => this.#models.poll(), POLL_MS);
    const listening = [this.#http.listen(init.listenFd)];
    if (this.#grpc !== undefined && init.grpcListenFd !== undefined) {
      listening.push(this.#grpc.listen(init.grpcListenFd));
    }
    void Promise.all(listening).then(() => send({ type: 'listening' }));
  }

  #makeGrpcPort(settings: IngressSettings, budget: BodyBudget): GrpcPort {
    const [models, documents] = [this.#models, this.#documents];
    const noteFailure: GrpcOptions['noteFailure'] = (...failure) => this.#http.noteFailure(...failure);
    return new GrpcPort({ models, documents, budget, settings, noteFailure }, this.#log);
  }

  #listenToBell(path: string): void {
    const bell = new Socket({
      fd: openSync(path, fs.O_RDONLY | fs.O_NONBLOCK),
      readable: true,
      writable: false,
      // One buffer for ever: how many rings there were does not matter.
      onread: {
        buffer: Buffer.alloc(256),
        callback: () => {
          this.#models.poll();
          return true;
        },
      },
    } as ConstructorParameters<typeof Socket>[0]);
    bell.on('error', (error) => {
      this.#log.fatal({ err: error }, 'the doorbell is broken; this is a bug');
      throw error;
    });
    bell.resume();
  }

  handle(message: ToIngress): void {
    switch (message.type) {
      case 'init':
        throw new Error('an ingress is initialised once: this is a bug');
      case 'models':
        this.#documents.ready = message.ready;
        this.#documents.reason = message.reason;
        this.#models.update(message.models);
        this.#send({ type: 'models-taken', number: message.number });
        this.#grpc?.readinessChanged();
        return;
      case 'common': {
        const { number, regions, logging } = message;
        setLogging(this.#log, logging);
        this.#documents.logging = logging;
        const missing = this.#regions.update(regions);
        if (missing.length > 0) this.#log.error({ regions: missing.length }, 'shared memory could not be opened');
        this.#send({ type: 'common-taken', number, missing });
        return;
      }
      case 'controlled':
        this.#control.answered(message);
        return;
      case 'drain':
        this.#drain(message.timeoutMs);
    }
  }

  /** Finishes what is under way, within the time; then ends the process. */
  #drain(timeoutMs: number): void {
    this.#documents.ready = false;
    this.#documents.reason = 'the server is shutting down';
    this.#http.drain();
    this.#grpc?.drain(timeoutMs);
    const until = Date.now() + timeoutMs;
    const check = setInterval(() => {
      this.#models.poll();
      const unanswered = Math.max(this.#models.inFlight, this.#http.busyConnections() + (this.#grpc?.busy() ?? 0));
      if (unanswered > 0 && Date.now() < until) return;
      clearInterval(check);
      if (unanswered > 0) this.#log.error({ unanswered }, 'requests were cut at the end of the drain time');
      this.#http.destroyConnections();
      this.#grpc?.destroyConnections();
      flushLogs(this.#log);
      this.#send({ type: 'drained', unanswered }, () => process.exit(0));
    }, DRAIN_CHECK_MS);
  }
}
