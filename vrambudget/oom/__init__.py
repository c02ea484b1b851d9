"""Out-of-memory messages: read out of any log, and explained with and without the job."""
