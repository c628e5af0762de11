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
function play(scenario: Scenario, at: number, rounds: number): boolean {
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
        rig.settle();
        for (let round = 0; round < rounds; round++) {
          rig.ingress(1).ask(small(rig));
          rig.settle();
        }
        // Left for whoever comes first; without it an instance would find nothing and sleep.
        rig.ingress(1).ask(small(rig));
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

for (const rounds of [0, 3]) {
  for (const scenario of SCENARIOS) {
    const what = rounds === 0 ? 'while the others finish' : 'while the others ask more, too';
    test(`${scenario.name}: it may be stopped at every step, ${what}`, () => {
      let at = 1;
      try {
        while (play(scenario, at, rounds)) at++;
      } catch (error) {
        throw new Error(`stop at step ${at}: ${(error as Error).stack}`, { cause: error });
      }
      assert.ok(at > scenario.stepsMin, `only ${at - 1} steps: the scenario does not do what it says`);
    });
  }
}
