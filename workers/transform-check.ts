/** Loads a transform's module in a process of its own, and says on stdout what is wrong with it: the URL and its functions are the arguments. */
import { moduleProblem, type TransformStep } from '../src/transform/call.ts';

const [url, ...steps] = process.argv.slice(2) as [string, ...TransformStep[]];
let problem: string | undefined;
try {
  problem = moduleProblem(await import(url), steps);
} catch (error) {
  problem = `cannot be loaded: ${error instanceof Error ? `${error.name}: ${error.message}` : String(error)}`;
}
process.stdout.write(`\n${JSON.stringify({ problem })}\n`, () => process.exit(0));
