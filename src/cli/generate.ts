/** `npm run generate`: writes the generated files that differ, and names them. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { generatedFiles } from './generated.ts';

// The compiled file lies in dist/src/cli.
const root = fileURLToPath(new URL('../../..', import.meta.url));

for (const [path, content] of generatedFiles(root)) {
  const file = join(root, path);
  if (existsSync(file) && readFileSync(file, 'utf8') === content) continue;
  writeFileSync(file, content);
  process.stdout.write(`${path}\n`);
}
