/** The rival for memory and start: one process that loads the same models with ONNX Runtime and does nothing else. */
import { Session } from '../../src/runtime/session.ts';
import { answerParent } from './child.ts';

const sessions: Session[] = [];

answerParent<readonly string[], number>((modelPaths) => {
  for (const modelPath of modelPaths) {
    sessions.push(Session.load(modelPath, { provider: 'cpu', deviceId: 0, intraOpThreads: 1 }));
  }
  return sessions.length;
});
