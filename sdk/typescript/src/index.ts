/** Ask many small specialist models as one. */

export type { Answer, Chunk, TokenLogprob, TokenLogprobs, ToolCallPart, Usage } from "./answer.js";
export { AnswerStream } from "./answer_stream.js";
export type { CallOptions } from "./caller.js";
export { Chat, type ChatOptions, type Turn } from "./chat.js";
export { DEFAULT_URL, Octet, type OctetOptions } from "./client.js";
export * from "./errors.js";
export { type Job, type JobError, type JobEvent, type JobStatus, hasEnded } from "./job.js";
export { JobEvents, type Watching } from "./job_events.js";
export { Jobs, type ListOptions, type SubmitOptions } from "./jobs.js";
export { type Model, Models } from "./models.js";
export type * from "./receipt.js";
export { Receipts } from "./receipts.js";
export type {
  Asked,
  InferRequest,
  Message,
  Sampling,
  Schema,
  Settings,
  Structure,
  Tool,
  ToolCall,
  ToolChoice,
} from "./request.js";
export type { RetryPolicy } from "./retry.js";
export { EventParser, type ServerEvent } from "./sse.js";
export type { Fetch } from "./transport.js";
