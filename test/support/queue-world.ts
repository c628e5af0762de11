/**
 * A queue in which everything happens at random: requests, results, deaths and stops of ingresses and instances in the middle of what they do, trims and
 * failures by the supervisor. Beside it a naive account of every request, against which each answer and each bound is checked.
 *
 * All in one thread and drawn from one generator, so a seed repeats a run exactly, unless an instance had to wait for real time (a steal).
 */
import assert from 'node:assert/strict';
import { SLAB_ATTEMPTS } from '../../src/queue/geometry.ts';
import { census, failQueued, nudge } from '../../src/queue/reclaim.ts';
import { STATUS_INTERNAL, STATUS_OK, STATUS_WORKER_LOST } from '../../src/queue/result.ts';
import {
  CLAIM_EMPTY,
  CLAIM_RELEASED,
  CLAIM_SEAL,
  claimRows,
  claimState,
  instanceOwner,
  SLAB_OPEN,
  SLAB_RUNNING,
  SLAB_SEALED,
  slabOwner,
  slabState,
  TAKEOVERS_MAX,
} from '../../src/queue/states.ts';
import { idleFaults } from './queue-audit.ts';
import { NUMBERS, NUMBERS_R, NUMBERS_Y, numbersTicket, type Ticket, WORDS, wordsTicket } from './queue-models.ts';
import { hasOpenSlab, QueueRig, type TestIngress } from './queue-rig.ts';
import { killAt, stopAt } from './queue-steps.ts';
import type { Random } from './random.ts';

/** What the naive account knows of a request. */
interface Entry {
  readonly ticket: Ticket;
  readonly ingress: TestIngress;
  state: 'open' | 'given up' | 'answered' | 'lost';
  /** Instances that died with its slab in their hands, as far as is known. */
  deaths: number;
  /** Its ingress was stopped in the middle of placing it when an instance died, perhaps with that very slab. */
  deathUnseen: boolean;
  /** Whether the supervisor failed the queue since it was asked. */
  failed: boolean;
}

export interface WorldCounts {
  operations: number;
  asked: number;
  answered: number;
  refused: number;
  lost: number;
  workerLost: number;
  kills: number;
  stops: number;
}

type Party = { readonly kind: 'ingress' | 'instance'; readonly slot: number };

export class World {
  readonly counts: WorldCounts = {
    operations: 0,
    asked: 0,
    answered: 0,
    refused: 0,
    lost: 0,
    workerLost: 0,
    kills: 0,
    stops: 0,
  };
  readonly #random: Random;
  readonly #rig: QueueRig;
  readonly #maxRows: number;
  readonly #instanceMortality: number;
  readonly #entries = new Map<Ticket, Entry>();
  /** Stopped in the middle of something. */
  readonly #busy = new Set<string>();
  #lastId = 0;

  constructor(random: Random) {
    this.#random = random;
    this.#maxRows = random.int(8, 60);
    this.#instanceMortality = random.pick([0.02, 0.05, 0.5]);
    this.#rig = new QueueRig({
      model: random.chance(0.3) ? WORDS : NUMBERS,
      shape: { slabs: random.int(2, 8), claimsPerSlab: random.int(2, 8), blocks: 96 },
      ingresses: random.int(1, 3),
      instances: random.int(1, 3),
      maxRows: this.#maxRows,
      maxQueueDelayUs: random.chance(0.2) ? 100 : 0,
    });
  }

  close(): void {
    this.#rig.close();
  }

  /** Does something. */
  step(): void {
    this.#operate();
    this.#checkBounds();
  }

  /** Lets all faults stop; then everything has to come to rest with every request accounted for. */
  rest(): void {
    this.#revive();
    this.#rig.settle();
    this.#account();
    for (const { ticket, state } of this.#entries.values()) {
      assert.notEqual(state, 'open', `request ${ticket.id} is never answered`);
    }
    this.#entries.clear();
    assert.deepEqual(idleFaults(this.#rig.segment), []);
  }

  #operate(): void {
    this.counts.operations++;
    const random = this.#random;
    const party = random.chance(0.04) ? undefined : this.#pickParty();
    if (party === undefined) {
      this.#supervise();
      return;
    }
    const act = party.kind === 'ingress' ? this.#ingressAct(party.slot) : this.#instanceAct(party.slot);
    if (random.chance(party.kind === 'ingress' ? 0.02 : this.#instanceMortality)) this.#dieIn(party, act);
    else if (random.chance(0.15) && this.#busy.size < 2) this.#stopIn(party, act);
    else act();
    this.#account();
  }

  #pickParty(): Party | undefined {
    const parties: Party[] = [];
    for (const { slot } of this.#live(this.#rig.ingresses)) parties.push({ kind: 'ingress', slot });
    for (const { slot } of this.#live(this.#rig.instances)) parties.push({ kind: 'instance', slot });
    const free = parties.filter(({ kind, slot }) => !this.#busy.has(kind + slot));
    return free.length === 0 ? undefined : this.#random.pick(free);
  }

  #live<T>(parties: readonly (T | undefined)[]): T[] {
    return parties.filter((party) => party !== undefined);
  }

  #ingressAct(slot: number): () => void {
    const ingress = this.#rig.ingress(slot);
    const random = this.#random;
    const what = random.float();
    if (what < 0.55) {
      const ticket = this.#newTicket();
      return () => this.#ask(ingress, ticket);
    }
    if (what < 0.65 && ingress.open.size > 0) {
      const ticket = random.pick([...ingress.open]);
      return () => {
        ingress.giveUp(ticket);
        const entry = this.#entries.get(ticket);
        if (entry !== undefined) entry.state = 'given up';
      };
    }
    if (what < 0.7) return () => ingress.poll();
    return () => void ingress.loop();
  }

  #instanceAct(slot: number): () => void {
    const instance = this.#rig.instance(slot);
    return () => void instance.turn();
  }

  #newTicket(): Ticket {
    const random = this.#random;
    const { layouts, model } = this.#rig;
    const id = ++this.#lastId;
    const rows = random.int(1, 5);
    if (model === WORDS) return wordsTicket(layouts, id, rows, random.pick([3, 40, 6000]));
    if (random.chance(0.1)) return numbersTicket(layouts, id, Math.min(rows, 3), 4096, [NUMBERS_Y]);
    const outputs = random.pick([[NUMBERS_Y], [NUMBERS_R], [NUMBERS_Y, NUMBERS_R]]);
    return numbersTicket(layouts, id, rows, random.int(1, 3), outputs, random.int(0, 2));
  }

  #ask(ingress: TestIngress, ticket: Ticket): void {
    const mayCount = this.#rowsThatMayCount();
    this.#entries.set(ticket, { ticket, ingress, state: 'open', deaths: 0, deathUnseen: false, failed: false });
    if (ingress.ask(ticket)) {
      this.counts.asked++;
      return;
    }
    this.#entries.delete(ticket);
    this.counts.refused++;
    // Nothing else ran since, so there must have been a reason.
    if (this.#busy.size === 0) {
      assert.ok(mayCount + ticket.rows > this.#maxRows, `${ticket.rows} rows refused when at most ${mayCount} queue`);
    }
  }

  /** Rows that an admission may count: those of all requests of the living that are not answered, or were given up since the last rest. */
  #rowsThatMayCount(): number {
    let rows = 0;
    for (const { state, ticket } of this.#entries.values()) {
      if (state === 'open' || state === 'given up') rows += ticket.rows;
    }
    return rows;
  }

  #dieIn(party: Party, act: () => void): void {
    const fatal = this.#random.int(1, 120);
    killAt(fatal, act);
    this.counts.kills++;
    this.#markDead(party);
    // The others go on for a while before it is reaped.
    const key = party.kind + party.slot;
    this.#busy.add(key);
    for (let n = this.#random.int(0, 3); n > 0; n--) this.#operate();
    this.#busy.delete(key);
    this.#reap(party);
    if (this.#random.chance(0.8)) this.#start(party);
  }

  #stopIn(party: Party, act: () => void): void {
    const key = party.kind + party.slot;
    this.#busy.add(key);
    stopAt(this.#random.int(1, 120), act, () => {
      this.counts.stops++;
      for (let n = this.#random.int(1, 6); n > 0; n--) this.#operate();
      if (party.kind === 'instance' && !hasOpenSlab(this.#rig.segment)) this.#giveWork();
    });
    this.#busy.delete(key);
  }

  /** An instance that is stopped in next() and finds everything taken would really sleep. */
  #giveWork(): void {
    const free = this.#live(this.#rig.ingresses).filter(({ slot }) => !this.#busy.has(`ingress${slot}`));
    if (free.length > 0) this.#ask(this.#random.pick(free), this.#newTicket());
  }

  #markDead({ kind, slot }: Party): void {
    const { ingresses, instances, segment } = this.#rig;
    if (kind === 'ingress') {
      const dead = ingresses[slot]!;
      this.#harvest(dead);
      for (const entry of this.#entries.values()) {
        if (entry.ingress !== dead || entry.state !== 'open') continue;
        entry.state = 'lost';
        this.counts.lost++;
      }
      ingresses[slot] = undefined;
      return;
    }
    for (let slab = 0; slab < segment.geometry.slabs; slab++) {
      const word = segment.i32[segment.slabWords + slab]!;
      const state = slabState(word);
      if (slabOwner(word) !== instanceOwner(slot) || (state !== SLAB_SEALED && state !== SLAB_RUNNING)) continue;
      for (const entry of this.#entries.values()) {
        if (entry.ticket.claim === undefined) entry.deathUnseen = true;
        else if (entry.ticket.claim.slab === slab) entry.deaths++;
      }
    }
    instances[slot] = undefined;
  }

  #reap({ kind, slot }: Party): void {
    if (kind === 'ingress') this.#rig.killIngress(slot);
    else this.#rig.killInstance(slot);
  }

  #start({ kind, slot }: Party): void {
    if (kind === 'ingress') this.#rig.startIngress(slot);
    else this.#rig.startInstance(slot);
  }

  #revive(): void {
    const { ingresses, instances } = this.#rig;
    for (let slot = 0; slot < ingresses.length; slot++) {
      if (ingresses[slot] === undefined && !this.#busy.has(`ingress${slot}`)) this.#rig.startIngress(slot);
    }
    for (let slot = 0; slot < instances.length; slot++) {
      if (instances[slot] === undefined && !this.#busy.has(`instance${slot}`)) this.#rig.startInstance(slot);
    }
  }

  #supervise(): void {
    const { segment, bells } = this.#rig;
    const what = this.#random.float();
    if (what < 0.3) this.#revive();
    else if (what < 0.5) segment.trim(bells);
    else if (what < 0.9) nudge(segment, bells);
    else {
      failQueued(segment, bells, STATUS_INTERNAL);
      for (const entry of this.#entries.values()) entry.failed = true;
    }
  }

  /** Takes up what the ingresses have been answered, and checks it. */
  #account(): void {
    for (const ingress of this.#live(this.#rig.ingresses)) this.#harvest(ingress);
  }

  #harvest(ingress: TestIngress): void {
    assert.deepEqual(ingress.faults, []);
    for (const ticket of ingress.answered.splice(0)) {
      const entry = this.#entries.get(ticket);
      assert.ok(entry, `request ${ticket.id} was answered and never asked, or answered twice`);
      assert.equal(entry.ingress, ingress);
      assert.equal(entry.state, 'open', `request ${ticket.id} was ${entry.state} before its answer`);
      assert.equal(ticket.answers, 1);
      entry.state = 'answered';
      this.counts.answered++;
      if (ticket.status === STATUS_WORKER_LOST) {
        this.counts.workerLost++;
        assert.ok(
          entry.deaths > TAKEOVERS_MAX || entry.deathUnseen,
          `request ${ticket.id} given up after ${entry.deaths} deaths`,
        );
      } else if (ticket.status !== STATUS_OK) {
        assert.ok(
          ticket.status === STATUS_INTERNAL && entry.failed,
          `request ${ticket.id} has status ${ticket.status}`,
        );
      }
      this.#entries.delete(ticket);
    }
  }

  /** Rows that queue, but for those of batches that are being run again, never pass the bound; and the census counts as we do. */
  #checkBounds(): void {
    const { segment } = this.#rig;
    let open = 0;
    let again = 0;
    for (let slab = 0; slab < segment.geometry.slabs; slab++) {
      if (slabState(segment.i32[segment.slabWords + slab]!) !== SLAB_OPEN) continue;
      let rows = 0;
      for (let claim = 0; claim < segment.geometry.claimsPerSlab; claim++) {
        const word = segment.i32[segment.claimIndex(slab) + claim]!;
        const state = claimState(word);
        if (state === CLAIM_EMPTY || state === CLAIM_SEAL) break;
        if (state !== CLAIM_RELEASED) rows += claimRows(word);
      }
      if (segment.i32[segment.descriptor(slab) + SLAB_ATTEMPTS] === 0) open += rows;
      else again += rows;
    }
    assert.equal(census(segment).queuedRows, open + again);
    let waiting = 0;
    for (const { ingress, ticket, state } of this.#entries.values()) {
      if (state === 'open' && ticket.claim === undefined && ingress.open.has(ticket)) waiting += ticket.rows;
    }
    assert.ok(open + waiting <= this.#maxRows, `${open} rows queue and ${waiting} wait, of ${this.#maxRows}`);
  }
}
