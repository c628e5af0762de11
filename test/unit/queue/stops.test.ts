/**
 * Every process may be stopped between any two atomic steps and go on later: each scenario is run once for each instant before and after one of its steps, and at that step the others
 * do all they can: run what is there, steal what is not finished, free, ask again. Nobody has died, so every request gets its own answer.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { STATUS_OK } from '../../../src/queue/result.ts';
import { QueueRig } from '../../support/queue-rig.ts';
import { SCENARIOS, type Scenario, small } from '../../support/queue-scenarios.ts';
import { stopAt } from '../../support/queue-steps.ts';

/** @returns whether the scenario has a step number `at`. */
function play(scenario: Scenario, at: number, others: (rig: QueueRig) => void): boolean {
  const rig = new QueueRig(scenario.options);
  try {
    scenario.prepare(rig);
    const parties = scenario.victim === 'ingress' ? rig.ingresses : rig.instances;
    const victim = parties[0];
    const reached = stopAt(
      at,
      () => scenario.act(rig),
      () => {
        parties[0] = undefined;
        others(rig);
        // Work for the victim too: an instance that is stopped in next() and finds everything taken would sleep in earnest.
        if (scenario.victim === 'instance') rig.ingress(1).ask(small(rig));
        parties[0] = victim as never;
      },
    );
    rig.finish();
    for (const ingress of rig.ingresses) {
      for (const { id, status } of ingress?.answered ?? []) assert.equal(status, STATUS_OK, `request ${id}`);
    }
    return reached;
  } finally {
    rig.close();
  }
}

/** What the others do meanwhile. */
const OTHERS: readonly [name: string, others: (rig: QueueRig) => void][] = [
  ['finish', (rig) => rig.settle()],
  [
    'finish and ask more',
    (rig) => {
      for (let round = 0; round < 4; round++) {
        rig.settle();
        rig.ingress(1).ask(small(rig));
      }
    },
  ],
  [
    'only ask',
    (rig) => {
      for (let n = 0; n < 2; n++) rig.ingress(1).ask(small(rig));
    },
  ],
];

for (const [what, others] of OTHERS) {
  for (const scenario of SCENARIOS) {
    test(`${scenario.name}: it may be stopped at every step while the others ${what}`, () => {
      let at = 1;
      try {
        while (play(scenario, at, others)) at++;
      } catch (error) {
        throw new Error(`stop at step ${at}: ${(error as Error).stack}`, { cause: error });
      }
      assert.ok(at > scenario.stepsMin, `only ${at - 1} steps: the scenario does not do what it says`);
    });
  }
}
