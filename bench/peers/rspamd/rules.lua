-- No rules but what the signer needs.
require "global_functions" ()
config['regexp'] = {}
rspamd_maps = {}
