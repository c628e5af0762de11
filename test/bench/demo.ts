/** The demo repository that `npm start` serves. */
import fs from 'node:fs';
import path from 'node:path';
import { PROJECT_DIR } from '../support/server.ts';

export const DEMO_DIR = path.join(PROJECT_DIR, 'config/demo');

/** Its model files. */
export function demoModels(): string[] {
  const files = fs.readdirSync(DEMO_DIR, { recursive: true, encoding: 'utf8' });
  return files.filter((file) => file.endsWith('.onnx')).map((file) => path.join(DEMO_DIR, file));
}
