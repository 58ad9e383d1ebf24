/** Written by `make dashboard-types` from the operations in src/posthouse/entrypoints/http/routes. */

/** Each role includes the permissions of those before it. */
export const ROLES = ['viewer', 'member', 'admin', 'owner'] as const
export type Role = (typeof ROLES)[number]

/** The least role of each operation. */
export const NEEDED = {
  addDomain: 'admin',
  addSuppression: 'member',
  beginTotp: 'viewer',
  cancelMessages: 'member',
  changeMemberRole: 'owner',
  changePassword: 'viewer',
  confirmTotp: 'viewer',
  createCredential: 'admin',
  createEndpoint: 'member',
  createErasure: 'member',
  createKey: 'admin',
  createResend: 'member',
  createTemplate: 'member',
  createTemplateVersion: 'member',
  deleteEndpoint: 'member',
  deleteTemplate: 'member',
  deleteWebhook: 'member',
  disableTotp: 'viewer',
  dryRunEmail: 'member',
  endSession: 'viewer',
  exportAuditLog: 'owner',
  exportLedger: 'viewer',
  exportMessages: 'viewer',
  exportSuppressions: 'admin',
  getAccount: 'viewer',
  getAlerts: 'viewer',
  getDomain: 'viewer',
  getEndpoint: 'viewer',
  getEndpointDelivery: 'viewer',
  getErasure: 'viewer',
  getMe: 'viewer',
  getMessage: 'viewer',
  getMessageAttachment: 'viewer',
  getMessageContent: 'viewer',
  getMessageRaw: 'viewer',
  getProgress: 'viewer',
  getResend: 'viewer',
  getTemplate: 'viewer',
  getWebhook: 'viewer',
  getWebhookDelivery: 'viewer',
  importSuppressions: 'admin',
  inviteMember: 'owner',
  listAuditLog: 'owner',
  listCredentials: 'admin',
  listDomains: 'viewer',
  listEndpointDeliveries: 'viewer',
  listEndpoints: 'viewer',
  listEvents: 'viewer',
  listInvitations: 'owner',
  listKeys: 'admin',
  listLedger: 'viewer',
  listMembers: 'viewer',
  listMessages: 'viewer',
  listReasons: 'viewer',
  listSessions: 'viewer',
  listSuppressions: 'viewer',
  listTemplates: 'viewer',
  listUsage: 'viewer',
  listWebhookDeliveries: 'viewer',
  logout: 'viewer',
  pingEndpoint: 'member',
  pingWebhook: 'member',
  previewTemplate: 'viewer',
  publishTemplate: 'member',
  removeDomain: 'admin',
  removeMember: 'owner',
  removeSuppression: 'member',
  renameAccount: 'owner',
  renameTemplate: 'member',
  renewRecoveryCodes: 'viewer',
  replayEndpoint: 'member',
  replayEndpointDelivery: 'member',
  replayWebhookDeliveries: 'member',
  replayWebhookDelivery: 'member',
  requireSecondFactor: 'owner',
  retryMessage: 'member',
  revokeCredential: 'admin',
  revokeInvitation: 'owner',
  revokeKey: 'admin',
  rotateCredential: 'admin',
  rotateDomainKeys: 'admin',
  rotateEndpointSecret: 'member',
  rotateKey: 'admin',
  rotateWebhookSecret: 'member',
  saveAlerts: 'viewer',
  saveEndpoint: 'member',
  saveWebhook: 'member',
  sendTestEmail: 'member',
  stopResend: 'member',
  switchAccount: 'viewer',
  verifyDomain: 'admin',
  watchAccount: 'viewer',
} as const satisfies Record<string, Role>

/** For operators, whatever their role. */
export type OperatorOperation =
  | 'operatorChangeQueue'
  | 'operatorCreateResend'
  | 'operatorEndSessions'
  | 'operatorFindMessages'
  | 'operatorFindUsers'
  | 'operatorGetAccount'
  | 'operatorGetLane'
  | 'operatorGetMessage'
  | 'operatorGetMessageContent'
  | 'operatorGetPostmasterMail'
  | 'operatorGetResend'
  | 'operatorGrantCredits'
  | 'operatorHealth'
  | 'operatorImpersonateAccount'
  | 'operatorListAccounts'
  | 'operatorListAddresses'
  | 'operatorListLanes'
  | 'operatorListPostmasterMail'
  | 'operatorLog'
  | 'operatorOverview'
  | 'operatorPauseLane'
  | 'operatorPinLane'
  | 'operatorQueue'
  | 'operatorRemovePostmasterMail'
  | 'operatorResumeAccount'
  | 'operatorResumeLane'
  | 'operatorSetLimits'
  | 'operatorStopResend'
  | 'operatorSuspendAccount'
  | 'operatorUndoLimitChange'
export type Operation = keyof typeof NEEDED | OperatorOperation

/** What concerns only the user: open even without the second factor that an account requires. */
export const OWN: readonly Operation[] = [
  'beginTotp',
  'changePassword',
  'confirmTotp',
  'disableTotp',
  'endSession',
  'getMe',
  'listSessions',
  'logout',
  'renewRecoveryCodes',
  'switchAccount',
]
