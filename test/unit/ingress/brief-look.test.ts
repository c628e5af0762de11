import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { BriefLook, LOOK_FROM_REQUESTS, PROBE_EVERY } from '../../../src/ingress/brief-look.ts';

/** Looks that were made in so many turns, each told the same. */
function looksIn(look: BriefLook, turns: number, found: boolean): number {
  let looks = 0;
  for (let turn = 0; turn < turns; turn++) {
    if (!look.worthwhile(LOOK_FROM_REQUESTS)) continue;
    looks++;
    look.note(found);
  }
  return looks;
}

describe('a brief look for results', () => {
  test('goes on in every turn as long as it finds them', () => {
    assert.equal(looksIn(new BriefLook(), 1000, true), 1000);
  });

  test('is given up when it finds none, but for one turn in many', () => {
    const look = new BriefLook();
    looksIn(look, 100, false);
    assert.equal(looksIn(look, 10 * PROBE_EVERY, false), 10);
  });

  test('comes back when the model has become fast', () => {
    const look = new BriefLook();
    looksIn(look, 1000, false);
    looksIn(look, 20 * PROBE_EVERY, true);
    assert.equal(looksIn(look, 100, true), 100);
  });

  test('is not made for one request', () => {
    assert.equal(new BriefLook().worthwhile(1), false);
  });
});
