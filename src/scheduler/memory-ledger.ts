/**
 * The memory account of one device: what there is, what is kept back, and which model may take how much.
 *
 *     total − reserve − others  =  shares of the models that are loaded  +  free
 *     share of a model          =  its weights  +  room for its runs          (it is the limit of the arena that the model runs in)
 *
 * A model is loaded only if its weights and a run of one row fit into what is free; otherwise it is refused with the sums, before anything of it is allocated. What
 * is left then is divided: every model that is still to come and would fit keeps its least part, the rest goes to all of them in equal parts, but to none more than
 * it can use (its own budget, or what its largest batch was measured to take on all of its instances).
 *
 * Invariants: shares never add up to more than there is; who was counted on when another was loaded is not refused afterwards, as long as nothing has changed.
 * Where no total is known there is no limit but a model's own budget.
 *
 * Pure: states are values.
 */
import { roundSizeBytes } from '../config/size.ts';

export interface Account {
  readonly device: string;
  /** Undefined where nobody tells. */
  readonly totalBytes: number | undefined;
  /** Who tells the total, in words. */
  readonly source: string;
  readonly reserveBytes: number;
  /** Taken by processes that are not ours. */
  readonly othersBytes: number;
}

/** What is known about a model on a device. */
export interface Claim {
  readonly model: string;
  readonly weightsBytes: number;
  /** `measured` at an earlier load of the same files, or `estimated` from their sizes, which is the least it can be. */
  readonly weightsFrom: 'measured' | 'estimated';
  /** What a run of one row takes; undefined before anything has been measured. */
  readonly oneRowBytes: number | undefined;
  /** Most that its runs can take at a time; undefined where that is not known. */
  readonly runsBytes: number | undefined;
  /** The model's own limit. */
  readonly budgetBytes: number | undefined;
  /** What it was loaded with; undefined for one that is still to come. */
  readonly shareBytes: number | undefined;
}

export type Admission =
  /** `shareBytes` undefined: there is no limit. `canGrow`: it is all that the model was thought to need, and would be more if it needed more. */
  | { readonly fits: true; readonly shareBytes: number | undefined; readonly canGrow: boolean }
  /** A phrase for people, with the sums. */
  | { readonly fits: false; readonly reason: string };

const MODELS_SHOWN_MAX = 4;

/** What all models together may take; undefined where no total is known. */
export function spendableBytes({ totalBytes, reserveBytes, othersBytes }: Account): number | undefined {
  return totalBytes === undefined ? undefined : Math.max(0, totalBytes - reserveBytes - othersBytes);
}

/** What no loaded model has a share of; undefined where no total is known. */
export function freeBytes(account: Account, claims: readonly Claim[]): number | undefined {
  const spendable = spendableBytes(account);
  return spendable === undefined ? undefined : Math.max(0, spendable - shared(claims));
}

/** Least that a model needs to be of use. */
export function leastBytes({ weightsBytes, oneRowBytes }: Claim): number {
  return weightsBytes + (oneRowBytes ?? 0);
}

/**
 * Whether a model may be loaded now, and with which share.
 *
 * @param claims of all models of the device, those to come in the order in which they will be loaded; `model` is one of these.
 */
export function admit(account: Account, claims: readonly Claim[], model: string): Admission {
  const claim = claims.find((one) => one.model === model);
  if (claim === undefined) throw new Error(`This is a bug: ${model} is not in the account of ${account.device}`);
  const least = leastBytes(claim);
  if (claim.budgetBytes !== undefined && least > claim.budgetBytes) {
    return { fits: false, reason: `${needs(claim)}, more than its memory_budget_bytes (${amount(claim.budgetBytes)})` };
  }
  const free = freeBytes(
    account,
    claims.filter((one) => one !== claim),
  );
  if (free === undefined) return { fits: true, shareBytes: claim.budgetBytes, canGrow: false };
  if (least > free) return { fits: false, reason: `${needs(claim)}, and ${sums(account, claims, free)}` };
  // Those to come that have a place beside it, in their order.
  let rest = free - least;
  const wanted = appetite(claim);
  const appetites = [wanted];
  for (const other of claims) {
    const otherLeast = leastBytes(other);
    if (other === claim || other.shareBytes !== undefined || otherLeast > (other.budgetBytes ?? rest)) continue;
    if (otherLeast > rest) continue;
    rest -= otherLeast;
    appetites.push(appetite(other));
  }
  const part = firstPart(appetites, rest);
  const canGrow =
    claim.budgetBytes === undefined &&
    part === wanted &&
    part < firstPart([Number.POSITIVE_INFINITY, ...appetites.slice(1)], rest);
  return { fits: true, shareBytes: Math.floor(least + part), canGrow };
}

/** What a model can use beyond its least. */
function appetite(claim: Claim): number {
  const { budgetBytes, runsBytes, weightsBytes } = claim;
  if (budgetBytes !== undefined) return budgetBytes - leastBytes(claim);
  return runsBytes === undefined ? Number.POSITIVE_INFINITY : Math.max(0, weightsBytes + runsBytes - leastBytes(claim));
}

/** The first one's part of what is divided equally among appetites that are filled one after the other, the smallest first. */
function firstPart(appetites: readonly number[], bytes: number): number {
  const [own] = appetites;
  const sorted = appetites.toSorted((a, b) => a - b);
  let left = bytes;
  for (const [n, size] of sorted.entries()) {
    const equal = left / (sorted.length - n);
    if (size >= equal) return Math.min(own!, equal);
    if (size === own) return own;
    left -= size;
  }
  return own!;
}

function shared(claims: readonly Claim[]): number {
  return claims.reduce((sum, { shareBytes }) => sum + (shareBytes ?? 0), 0);
}

/** "its weights take 33 MiB (estimated from its files) and a run of one row 16 MiB". */
function needs({ weightsBytes, weightsFrom, oneRowBytes }: Claim): string {
  const how = weightsFrom === 'measured' ? 'measured when they were last loaded' : 'by the size of its files';
  const weights = `its weights take ${amount(weightsBytes)} (${how})`;
  return oneRowBytes === undefined ? weights : `${weights} and a run of one row ${amount(oneRowBytes)}`;
}

/** "cpu has 20 MiB left: 340 MiB (--memory-budget-bytes) - 0 bytes in reserve - 320 MiB for a/1". */
function sums(account: Account, claims: readonly Claim[], free: number): string {
  const { device, source, reserveBytes, othersBytes } = account;
  const holders = claims.filter(({ shareBytes }) => shareBytes !== undefined);
  const sorted = holders.toSorted((a, b) => b.shareBytes! - a.shareBytes!);
  const shown = sorted.slice(0, MODELS_SHOWN_MAX).map(({ model, shareBytes }) => `${amount(shareBytes!)} for ${model}`);
  const others = sorted.slice(MODELS_SHOWN_MAX);
  const terms = [
    `${amount(account.totalBytes!)} (${source})`,
    ...(reserveBytes > 0 ? [`${amount(reserveBytes)} in reserve`] : []),
    ...(othersBytes > 0 ? [`${amount(othersBytes)} of other processes`] : []),
    ...shown,
    ...(others.length > 0 ? [`${amount(shared(others))} for ${others.length} more`] : []),
  ];
  return `${device} has ${amount(free)} left: ${terms.join(' - ')}`;
}

function amount(bytes: number): string {
  return roundSizeBytes(bytes);
}
