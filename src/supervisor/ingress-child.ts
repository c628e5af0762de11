/**
 * An ingress process seen from the supervisor. When it dies, its clients' connections die with it, its rows are given back, new connections wait in the listening
 * socket's backlog (which the supervisor holds) until the next one is up.
 */
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import type { ServerSettings } from '../config/settings.ts';
import { IngressCounters, readIngress } from '../metrics/counters.ts';
import type { ControlRequest, FromIngress, ToIngress } from '../protocol/control.ts';
import { counterIndex } from '../queue/geometry.ts';
import { reclaimIngress } from '../queue/reclaim.ts';
import { ChildProcess, type Takeover } from './child-process.ts';
import { INGRESS_POLICY, ingressSilentMaxMs } from './life-policies.ts';
import type { OomWatch } from './oom-watch.ts';
import type { ServedVersion } from './served-version.ts';

/** Bodies in flight of one ingress process: room for a few of the largest. */
const INFLIGHT_BODIES = 8;
const INFLIGHT_MIN_BYTES = 256 * 1024 * 1024;
/** Descriptor numbers under which the child finds the listening sockets: after stdin, stdout, stderr and the channel. */
const LISTEN_FD = 4;
const GRPC_LISTEN_FD = 5;
/** Short-lived objects of a few thousand requests fit, so that they are gone before they are copied. */
const SEMI_SPACE_MIB = 32;

export interface IngressChildOptions {
  readonly settings: ServerSettings;
  readonly listenFd: number;
  /** Undefined when gRPC is off. */
  readonly grpcListenFd: number | undefined;
  readonly bellReadFd: number;
  readonly bellWriteFds: readonly number[];
  readonly log: Logger;
  readonly oom: OomWatch;
  readonly versions: readonly ServedVersion[];
  readonly announcement: () => Extract<ToIngress, { type: 'models' }>;
  readonly common: () => Extract<ToIngress, { type: 'common' }>;
  /** Carries out what a client has asked for. */
  readonly onControl: (request: ControlRequest) => Promise<void>;
  readonly onListening: () => void;
}

export class IngressChild {
  readonly slot: number;
  readonly process: ChildProcess<FromIngress, ToIngress>;
  readonly #options: IngressChildOptions;
  #listening = false;
  /** Numbers of the announcements that were sent last and taken over last. */
  #announced = 0;
  #taken = 0;
  #commonAnnounced = false;
  #commonTaken = 0;
  #missingRegions: readonly number[] = [];
  #draining = false;
  #unanswered = 0;
  /** Requests answered well before the current life began. */
  #answeredBefore = 0;

  constructor(slot: number, options: IngressChildOptions) {
    this.slot = slot;
    this.#options = options;
    this.process = new ChildProcess<FromIngress, ToIngress>({
      role: 'ingress',
      label: { slot },
      entry: new URL('../../workers/ingress.js', import.meta.url),
      env: {},
      execArgv: [`--max-semi-space-size=${SEMI_SPACE_MIB}`],
      inherit: options.grpcListenFd === undefined ? [options.listenFd] : [options.listenFd, options.grpcListenFd],
      policy: INGRESS_POLICY,
      silentMaxMs: ingressSilentMaxMs(options.settings.maxBodyBytes),
      log: options.log,
      oom: options.oom,
      onMessage: (message) => this.#handle(message),
      onExit: () => this.#exited(),
      onState: () => {},
    });
  }

  start(): void {
    this.process.start();
  }

  get listening(): boolean {
    return this.#listening;
  }

  /** Tells it the models, unless it has yet to be told for the first time. */
  announce(message: Extract<ToIngress, { type: 'models' }>): void {
    if (this.#announced > 0) this.#announce(message);
  }

  #announce(message: Extract<ToIngress, { type: 'models' }>): void {
    this.#announced = message.number;
    this.process.send(message);
  }

  /** Number of the announcement that was sent last. */
  get announced(): number {
    return this.#announced;
  }

  /** Whether it knows the models as they were announced under this number. One that is not there knows no older ones. */
  hasHeard(number: number): boolean {
    return this.#taken >= number || this.process.pid === undefined;
  }

  /** Tells it what all have to know beside the models, unless it has yet to be told for the first time. */
  announceCommon(message: Extract<ToIngress, { type: 'common' }>): void {
    if (this.#commonAnnounced) this.#announceCommon(message);
  }

  #announceCommon(message: Extract<ToIngress, { type: 'common' }>): void {
    this.#commonAnnounced = true;
    this.process.send(message);
  }

  /** Whether it has what was announced under this number, and nothing older. One that has yet to be told will be told newer things. */
  hasCommon(number: number): boolean {
    return this.#commonTaken >= number || !this.#commonAnnounced || this.process.pid === undefined;
  }

  /** Serials of the regions that it could not open. */
  get missingRegions(): readonly number[] {
    return this.#missingRegions;
  }

  async #control(id: number, request: ControlRequest): Promise<void> {
    const { pid } = this.process;
    let error: BatchportError | undefined;
    try {
      await this.#options.onControl(request);
    } catch (thrown) {
      if (!(thrown instanceof BatchportError))
        this.#options.log.error({ err: thrown }, 'what a client asked for could not be done; this is a bug');
      error = thrown instanceof BatchportError ? thrown : new BatchportError('INTERNAL', String(thrown));
    }
    if (this.process.pid !== pid) return;
    const outcome = error === undefined ? {} : { error: { code: error.code, message: error.message } };
    this.process.send({ type: 'controlled', id, ...outcome });
  }

  #handle(message: FromIngress): void {
    switch (message.type) {
      case 'alive':
        return;
      case 'hello': {
        this.process.up();
        const { settings, grpcListenFd, bellReadFd, bellWriteFds, announcement, common } = this.#options;
        this.process.send({
          type: 'init',
          supervisorPid: process.pid,
          slot: this.slot,
          listenFd: LISTEN_FD,
          grpcListenFd: grpcListenFd === undefined ? undefined : GRPC_LISTEN_FD,
          bellFd: bellReadFd,
          bellFds: bellWriteFds,
          settings: {
            maxBodyBytes: settings.maxBodyBytes,
            maxInflightBytes: Math.max(INFLIGHT_MIN_BYTES, INFLIGHT_BODIES * settings.maxBodyBytes),
            headersTimeoutS: settings.headersTimeoutS,
            bodyIdleTimeoutS: settings.bodyIdleTimeoutS,
            keepAliveTimeoutS: settings.keepAliveTimeoutS,
            logLevel: settings.logLevel,
            modelControlMode: settings.modelControlMode,
            systemSharedMemory: settings.systemSharedMemory,
          },
        });
        // Before the models: a request for one may have its tensors in a region.
        this.#announceCommon(common());
        this.#announce(announcement());
        return;
      }
      case 'listening':
        this.#listening = true;
        this.process.ready();
        this.#options.onListening();
        return;
      case 'models-taken':
        this.#taken = message.number;
        return;
      case 'common-taken':
        this.#commonTaken = message.number;
        this.#missingRegions = message.missing;
        return;
      case 'control':
        void this.#control(message.id, message.request);
        return;
      case 'drained':
        this.#unanswered = message.unanswered;
        return;
    }
  }

  /** Looks after the process. To be called often. */
  watch(nowMs: number, lookAtState: boolean): void {
    this.process.watch(nowMs, lookAtState, []);
  }

  /** Gives back what the dead process held. */
  #exited(): Takeover {
    this.#listening = false;
    this.#announced = 0;
    this.#taken = 0;
    this.#commonAnnounced = false;
    this.#commonTaken = 0;
    this.#missingRegions = [];
    let requestsCut = 0;
    let answered = 0;
    for (const { segment, bells } of this.#options.versions) {
      if (segment === undefined || bells === undefined) continue;
      requestsCut += reclaimIngress(segment, bells, this.slot).claims;
      const counters = counterIndex(segment.geometry, { ingress: this.slot });
      new IngressCounters(segment.f64, counters).inFlight(0);
      answered += readIngress(segment.f64, counters).outcomes.ok;
    }
    const worked = answered > this.#answeredBefore;
    this.#answeredBefore = answered;
    if (this.#draining && requestsCut > this.#unanswered) {
      // Killed on its way out, it could not tell.
      this.#options.log.error({ slot: this.slot, unanswered: requestsCut }, 'requests were cut with their process');
      this.#unanswered = requestsCut;
    }
    return { atWork: requestsCut > 0, worked, fields: { requestsCut } };
  }

  /** Lets it finish what is under way. Returns how many requests were cut. */
  async drain(timeoutMs: number, graceMs: number): Promise<number> {
    this.process.stopping();
    if (this.process.pid === undefined) return 0;
    this.#draining = true;
    this.process.send({ type: 'drain', timeoutMs });
    await this.process.ended(timeoutMs + graceMs);
    return this.#unanswered;
  }
}
