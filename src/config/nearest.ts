/**
 * The known name nearest to a mistyped one, for "did you mean …".
 *
 * Distance: optimal string alignment (insert, delete, replace, swap of neighbours), on names folded to lower case with
 * '-' read as '_', so that `Max-Batch-Size` is at distance 0 from `max_batch_size`. Where no name is at distance 1, one that
 * only has words more or less after it, or words more before it, counts as nearest: `slo` for `slo_ms`, `port` for `http_port`.
 * Bound: names longer than NAME_LENGTH_MAX are never suggested for, so the work is at most NAME_LENGTH_MAX² per known name.
 */

const NAME_LENGTH_MAX = 64;

/**
 * The element of `known` nearest to `name`, or undefined when none is near enough to be a likely mistake: one edit in a name of
 * three letters, two up to eight, then a third of the length. Ties go to the earlier element.
 */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  const folded = fold(name);
  if (folded.length > NAME_LENGTH_MAX) {
    return undefined;
  }
  let best: string | undefined;
  let bestDistance = Number.POSITIVE_INFINITY;
  for (const candidate of known) {
    const other = fold(candidate);
    const allowed = Math.max(1, Math.min(2, other.length - 2), Math.floor(other.length / 3));
    if (other.length > NAME_LENGTH_MAX || Math.abs(other.length - folded.length) > allowed) {
      continue;
    }
    const distance = editDistance(folded, other);
    if (distance <= allowed && distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  if (bestDistance <= 1) {
    return best;
  }
  return known.find((candidate) => wordsDiffer(folded, fold(candidate))) ?? best;
}

/** ` (did you mean "x"?)` with a leading space, or '' when nothing is near. */
export function suggestion(name: string, known: readonly string[]): string {
  const nearest = nearestName(name, known);
  return nearest === undefined ? '' : ` (did you mean ${JSON.stringify(nearest)}?)`;
}

function wordsDiffer(name: string, known: string): boolean {
  return name !== '' && (name.startsWith(`${known}_`) || known.startsWith(`${name}_`) || known.endsWith(`_${name}`));
}

function fold(name: string): string {
  return name.toLowerCase().replaceAll('-', '_');
}

/** Optimal string alignment distance, three rows of the table at a time. */
function editDistance(a: string, b: string): number {
  let beforePrevious: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const current = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      let cost = Math.min(previous[j]! + 1, current[j - 1]! + 1, replaced);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        cost = Math.min(cost, beforePrevious[j - 2]! + 1);
      }
      current.push(cost);
    }
    beforePrevious = previous;
    previous = current;
  }
  return previous[b.length]!;
}
