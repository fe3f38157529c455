"""Files at URLs, with the interface of local paths; the cache of what was downloaded; objects in buckets."""
