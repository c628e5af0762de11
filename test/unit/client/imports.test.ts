import assert from 'node:assert/strict';
import fs from 'node:fs';
import { test } from 'node:test';

/** Packages that a compiled module needs, through all the project's own modules that it imports. */
function packagesOf(entry: URL): Set<string> {
  const packages = new Set<string>();
  const seen = new Set<string>();
  const visit = (url: URL): void => {
    if (seen.has(url.href)) return;
    seen.add(url.href);
    const source = fs.readFileSync(url, 'utf8').replace(/\/\*.*?\*\//gs, '');
    for (const [, name] of source.matchAll(/(?:from|import)\s*\(?\s*['"]([^'"]+)['"]/g)) {
      if (name!.startsWith('.')) visit(new URL(name!, url));
      else packages.add(name!);
    }
  };
  visit(entry);
  assert(seen.size > 5, 'the imports of the client were not found');
  return packages;
}

test('the client needs nothing native: undici is its only package', () => {
  const packages = packagesOf(new URL('../../../src/client/client.js', import.meta.url));
  assert.deepEqual(
    [...packages].filter((name) => !name.startsWith('node:')),
    ['undici'],
  );
});
