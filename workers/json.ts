/** Piscina's entry for reading and writing large JSON: see src/ingress/json-task.ts. */
export { readJson, writeJson } from '../src/ingress/json-task.ts';
