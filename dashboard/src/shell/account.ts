/** Going to another account: the address names it, and the shell takes a token for it. */
import { useLocation, useNavigate } from '@tanstack/react-router'
import { useCallback } from 'react'
import { BASE, inAccount } from '../rules/address'

export function useSwitch(): (account: string) => void {
  const navigate = useNavigate()
  const pathname = useLocation({ select: (location) => location.pathname })
  return useCallback((account) => void navigate({ href: inAccount(`${BASE}${pathname}`, account) }), [navigate, pathname])
}
