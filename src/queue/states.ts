/**
 * The protocol of the tensor queue: states, their words, and who may move them.
 *
 * SLAB: a region holding the batched tensors of one shape key. One word per slab: state | owner | generation.
 *
 *            open()            seal()            run             finish
 *     FREE ─────────▶ FILLING ──────▶ OPEN ──────▶ SEALED ──────▶ RUNNING ──────▶ DONE ──────▶ FREEING ──▶ FREE
 *                        │              ▲             │              │                        (last release)
 *                        ▼ no memory,   └─────────────┴──────────────┘ the instance died: taken over by another
 *                       FREE  dead                                     (twice: its requests are run one by one)
 *
 * CLAIM: consecutive rows of a slab taken by one request. One word per claim: state | owner | rows | generation.
 *
 *            claim()           publish()                    release()
 *     EMPTY ─────────▶ CLAIMED ─────────▶ READY ───────────────────────▶ RELEASED
 *       │                 │ sealer waited too long                           ▲
 *       ▼ seal()          └──────────────▶ STOLEN ───────────────────────────┘ (its owner notices, or is dead)
 *      SEAL (end marker: no claim after this one)
 *
 * Rules, from which the rest follows:
 * 1. A claim is ONE compareExchange, EMPTY → CLAIMED, that names its owner. There is no instant at which rows are taken by nobody, so
 *    what a dead process held can always be found.
 * 2. Claims are taken in order: claim c+1 only after claim c is taken. The first row of a claim is the sum of the rows before it, which
 *    can no longer change.
 * 3. Sealing puts SEAL into the first EMPTY claim. Whoever loses that race to a producer moves on by one; whoever claims before the marker
 *    is in the batch, whoever comes after finds the marker and goes elsewhere. A slab taken over is OPEN with its marker: nobody joins it.
 * 4. All claim words are rewritten with the slab's new generation before the slab is OPEN again. A producer that slept through a
 *    generation finds its compareExchange refused; should the 12 bits of generation have come round, the full generation read after the
 *    claim tells (the claim is then given back unused and not one byte is written).
 * 5. Only the owner of a word moves it, except: an instance may steal a claim that stays CLAIMED, the supervisor moves what a dead
 *    (reaped) process owned. Reaping comes first, so there are no late writers.
 * 6. A slab is freed when it is DONE and all its claims are RELEASED. The one that finishes and the one that releases both look after
 *    their own write; at least one of them sees both conditions; DONE → FREEING picks one.
 * 7. A stolen claim keeps its slab from being freed until its owner has seen it: the owner may still be copying into it.
 *
 * Bounds: 4096 rows a batch, 512 claims a slab, 32 ingress slots, 192 instances a model, 4096 slabs, 16 levels of priority.
 */

export const SLAB_FREE = 0;
export const SLAB_FILLING = 1;
export const SLAB_OPEN = 2;
export const SLAB_SEALED = 3;
export const SLAB_RUNNING = 4;
export const SLAB_DONE = 5;
export const SLAB_FREEING = 6;

export const SLAB_STATES = ['free', 'filling', 'open', 'sealed', 'running', 'done', 'freeing'] as const;

export const CLAIM_EMPTY = 0;
export const CLAIM_CLAIMED = 1;
export const CLAIM_READY = 2;
export const CLAIM_RELEASED = 3;
export const CLAIM_STOLEN = 4;
export const CLAIM_SEAL = 5;

/** Rows of the largest batch: 12 bits of a claim word hold rows − 1. */
export const BATCH_ROWS_MAX = 4096;
export const CLAIMS_MAX = 512;
export const INGRESS_MAX = 32;
export const INSTANCES_MAX = 192;
export const SLABS_MAX = 4096;

/**
 * Deaths of its instance after which a batch is no longer run as a whole: the first may have been the device's fault, the second was the batch's. From
 * then on its requests are run one by one, and the one that kills again is the guilty one.
 */
export const TAKEOVERS_MAX = 2;

/** Levels of priority that a model can have. */
export const PRIORITY_LEVELS_MAX = 16;
/** So many slabs opened after one of a level may be run before it for each level that they are above it: urgent rows go first, and nothing waits for ever. */
export const OVERTAKING_MAX = 32;

/** What is added to the number of a slab for its turn: the lowest is next. @param level of priority, 0 the most urgent */
export function turnDelay(level: number): number {
  return level * OVERTAKING_MAX;
}

/** Owners of slab words: ingress slots, then instances, then the supervisor. */
export const OWNER_NONE = 0;
export const OWNER_SUPERVISOR = 255;
export function ingressOwner(slot: number): number {
  return 1 + slot;
}
export function instanceOwner(slot: number): number {
  return 1 + INGRESS_MAX + slot;
}

const GENERATION_BITS = 20;
const GENERATION_MASK = (1 << GENERATION_BITS) - 1;

/** Slab word: state (bits 28–30), owner (20–27), generation (0–19). */
export function slabWord(state: number, owner: number, generation: number): number {
  return (state << 28) | (owner << 20) | (generation & GENERATION_MASK);
}
export function slabState(word: number): number {
  return (word >>> 28) & 7;
}
export function slabOwner(word: number): number {
  return (word >>> 20) & 0xff;
}
/** The word with another state and owner and the same generation. */
export function slabMoved(word: number, state: number, owner: number): number {
  return (state << 28) | (owner << 20) | (word & GENERATION_MASK);
}
/** Whether the word belongs to (the low bits of) this full generation. */
export function slabHasGeneration(word: number, generation: number): boolean {
  return (word & GENERATION_MASK) === (generation & GENERATION_MASK);
}

/** Claim word: state (bits 29–31), ingress slot (24–28), rows − 1 (12–23), generation (0–11). */
export function claimWord(state: number, slot: number, rows: number, generation: number): number {
  return (state << 29) | (slot << 24) | (((rows - 1) & 0xfff) << 12) | (generation & 0xfff);
}
/** An untaken claim of this generation. */
export function claimEmpty(generation: number): number {
  return generation & 0xfff;
}
/** The end marker of this generation. */
export function claimSeal(generation: number): number {
  return (CLAIM_SEAL << 29) | (generation & 0xfff);
}
export function claimState(word: number): number {
  return (word >>> 29) & 7;
}
export function claimSlot(word: number): number {
  return (word >>> 24) & 0x1f;
}
export function claimRows(word: number): number {
  return ((word >>> 12) & 0xfff) + 1;
}
/** The word with another state and everything else the same. */
export function claimMoved(word: number, state: number): number {
  return (word & 0x1fffffff) | (state << 29);
}
export function claimHasGeneration(word: number, generation: number): boolean {
  return (word & 0xfff) === (generation & 0xfff);
}
