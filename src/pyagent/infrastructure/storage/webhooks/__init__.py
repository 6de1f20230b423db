"""Webhooks in the journal's file: endpoints, the outbox of what they are told, the inbox of what comes in."""
