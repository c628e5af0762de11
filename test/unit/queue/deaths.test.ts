/**
 * Every process may be killed between any two atomic steps: each scenario is run once for each instant before and after one of its steps, the victim dies there, and the
 * supervisor reclaims what it held. The others then get their answers, woken by nothing but their bells and sleep words, and the segment is left idle.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CLAIM_MARK, MARK_ALONE, MARK_SETTLED } from '../../../src/queue/geometry.ts';
import { STATUS_OK, STATUS_WORKER_LOST } from '../../../src/queue/result.ts';
import { SLAB_RUNNING, SLAB_SEALED, slabState, TAKEOVERS_MAX } from '../../../src/queue/states.ts';
import { NUMBERS } from '../../support/queue-models.ts';
import { QueueRig, withRig } from '../../support/queue-rig.ts';
import { narrow, SCENARIOS, type Scenario, small } from '../../support/queue-scenarios.ts';
import { killAt, killWhen } from '../../support/queue-steps.ts';

const STEPS_MAX = 5000;

/** @returns whether the victim died at its step `fatal`; false when it has fewer steps. */
function play(scenario: Scenario, fatal: number, othersGoOn: boolean): boolean {
  const rig = new QueueRig(scenario.options);
  try {
    scenario.prepare(rig);
    const died = killAt(fatal, () => scenario.act(rig));
    if (died) {
      if (scenario.victim === 'ingress') rig.ingresses[0] = undefined;
      else rig.instances[0] = undefined;
      if (othersGoOn) rig.settle();
      if (scenario.victim === 'ingress') rig.killIngress(0);
      else rig.killInstance(0);
      // New requests would wake whoever was forgotten, so the balance is struck before.
      rig.finish();
      // Its successor finds a slot in order.
      if (scenario.victim === 'ingress') rig.startIngress(0);
      else rig.startInstance(0);
    }
    rig.ingress(0).ask(small(rig));
    rig.ingress(1).ask(small(rig));
    rig.finish();
    for (const ingress of rig.ingresses) {
      for (const ticket of ingress?.answered ?? []) assert.equal(ticket.status, STATUS_OK, `request ${ticket.id}`);
    }
    return died;
  } finally {
    rig.close();
  }
}

for (const othersGoOn of [false, true]) {
  for (const scenario of SCENARIOS) {
    const when = othersGoOn ? 'and the others go on before it is reaped' : 'and is reaped at once';
    test(`${scenario.name}: it may die at every step, ${when}`, () => {
      let fatal = 1;
      try {
        while (play(scenario, fatal, othersGoOn)) {
          fatal++;
          assert.ok(fatal < STEPS_MAX, 'the scenario does not end');
        }
      } catch (error) {
        throw new Error(`death at step ${fatal}: ${(error as Error).stack}`, { cause: error });
      }
      assert.ok(fatal > scenario.stepsMin, `only ${fatal - 1} steps: the scenario does not do what it says`);
    });
  }
}

test('a batch is run again after the death of its instance, and answered WORKER_LOST when that happens too often', () => {
  withRig({ model: NUMBERS }, (rig) => {
    rig.ingress().ask(narrow(rig, 3));
    for (let death = 0; death < TAKEOVERS_MAX; death++) {
      rig.instance().take();
      assert.deepEqual(rig.killInstance(0), { requeuedRows: 3, lostRows: 0 });
      rig.startInstance(0);
    }
    rig.instance().take();
    assert.deepEqual(rig.killInstance(0), { requeuedRows: 0, lostRows: 3 });
    rig.settle();
    assert.deepEqual(
      rig.ingress().answered.map(({ status }) => status),
      [STATUS_WORKER_LOST],
    );
  });
});

test('a slab whose sealing kills every instance is answered after as many deaths', () => {
  withRig({ model: NUMBERS }, (rig) => {
    rig.ingress().ask(narrow(rig));
    const { slab } = [...rig.ingress().open][0]!.claim!;
    const sealed = () => slabState(rig.segment.i32[rig.segment.slabWords + slab]!) === SLAB_SEALED;
    for (let death = 0; death <= TAKEOVERS_MAX; death++) {
      assert.ok(killWhen(sealed, () => rig.instance().take()));
      rig.killInstance(0);
      rig.startInstance(0);
    }
    rig.settle();
    assert.deepEqual(
      rig.ingress().answered.map(({ status }) => status),
      [STATUS_WORKER_LOST],
    );
  });
});

test('once a batch is run request by request, a death costs the one request that was being run', () => {
  const outcomes = new Set<number>();
  let fatal = 1;
  for (let died = true; died; fatal++) {
    withRig({ model: NUMBERS, ingresses: 2, instances: 2 }, (rig) => {
      const tickets = [narrow(rig, 2), narrow(rig, 1), narrow(rig, 3)];
      for (const [n, ticket] of tickets.entries()) rig.ingress(n % 2).ask(ticket);
      for (let death = 0; death < TAKEOVERS_MAX; death++) {
        rig.instance(0).take();
        rig.killInstance(0);
        rig.startInstance(0);
      }
      const { segment } = rig;
      died = killAt(fatal, () => {
        rig.instance(0).take();
        rig.instance(0).complete();
      });
      const word = segment.i32[segment.slabWords]!;
      const marks = tickets.map((_, n) => segment.i32[segment.claimDetail(0, n) / 4 + CLAIM_MARK]!);
      if (died) {
        rig.killInstance(0);
        rig.settle();
        rig.startInstance(0);
      } else rig.settle();
      const lost = tickets.filter(({ status }) => status === STATUS_WORKER_LOST).length;
      outcomes.add(lost);
      if (died && (slabState(word) === SLAB_SEALED || slabState(word) === SLAB_RUNNING)) {
        // Before it has begun with any of them, none can be told from the others; between two of them, none is to blame.
        const expected = marks.includes(MARK_ALONE) ? 1 : marks.includes(MARK_SETTLED) ? 0 : tickets.length;
        assert.equal(lost, expected, `death at step ${fatal}, marks ${marks}`);
      } else assert.equal(lost, 0, `death at step ${fatal}`);
    });
  }
  assert.deepEqual([...outcomes].sort(), [0, 1, 3]);
});
